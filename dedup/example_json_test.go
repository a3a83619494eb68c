package dedup_test

import (
	"fmt"

	"github.com/oncemill/oncemill/dedup"
)

func ExampleCanonicalJSON() {
	for _, payload := range []string{
		`{"currency": "EUR", "amount": 10.10}`,
		`{"amount":1010e-2,"\u0063urrency":"EUR"}`,
		`{"amount":10.10,"amount":99}`,
	} {
		text, err := dedup.CanonicalJSON([]byte(payload))
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%s\n", text)
	}
	// Output:
	// {"amount":101e-1,"currency":"EUR"}
	// {"amount":101e-1,"currency":"EUR"}
	// dedup: canonical JSON: member name is given twice in one object (at byte 16)
}

func ExampleJSONFingerprint() {
	f, err := dedup.JSONFingerprint(dedup.ExcludePaths("/sent_at"))
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := dedup.NewKey("acme", "charge-card", "evt-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	first := f.Fingerprint(key, []byte(`{"amount": 5, "sent_at": "10:00:00"}`))
	retry := f.Fingerprint(key, []byte(`{"sent_at": "10:00:07", "amount": 5.00}`))
	other := f.Fingerprint(key, []byte(`{"amount": 6, "sent_at": "10:00:00"}`))
	fmt.Println(first.Compare(retry))
	fmt.Println(first.Compare(other))
	// Output:
	// same
	// different
}
