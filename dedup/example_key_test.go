package dedup_test

import (
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedup"
)

func ExampleNewKey() {
	key, err := dedup.NewKey("acme", "charge-card", " 017f22e2-79b0-7cc3-98c4-dc0c0c07398f ")
	if err != nil {
		fmt.Println(err)
		return
	}
	when, _ := key.Time()
	fmt.Println(key.ID)
	fmt.Println(when.Format(time.RFC3339))
	fmt.Println(key)

	_, err = dedup.NewKey("acme", "charge-card", " ")
	fmt.Println(err, dedup.IsPermanent(err))
	// Output:
	// 017f22e2-79b0-7cc3-98c4-dc0c0c07398f
	// 2022-02-22T19:22:22Z
	// key:20fe7c2dbbccf6c3
	// dedup: key: id is missing or blank; see NewKey for the rules true
}
