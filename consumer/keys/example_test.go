package keys_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer/keys"
)

func ExampleMetadata() {
	key := keys.Metadata("event_id")
	msg := message.NewMessage("", nil)
	_, err := key.ID(msg)
	fmt.Println(err)

	msg.Metadata["event_id"] = "evt-1"
	id, _ := key.ID(msg)
	fmt.Println(key, "is", id)
	// Output:
	// no key: metadata "event_id" is missing or blank; it must be set where the intent is made
	// metadata "event_id" is evt-1
}

func ExampleJSONPointer() {
	msg := message.NewMessage("", []byte(`{"order":{"id":9007199254740993}}`))
	id, _ := keys.JSONPointer("/order/id").ID(msg)
	fmt.Println(id)
	// Output: 9007199254740993
}

func ExampleComposite() {
	msg := message.NewMessage("", []byte(`{"line":7}`))
	msg.Metadata["order"] = "o-1"
	id, _ := keys.Composite(keys.Metadata("order"), keys.JSONPointer("/line")).ID(msg)
	fmt.Println(id)
	// Output: 3:o-1|1:7
}

func ExampleCloudEvents() {
	msg := message.NewMessage("", nil)
	msg.Metadata["ce-source"] = "/orders"
	msg.Metadata["ce-id"] = "1"
	id, _ := keys.CloudEvents().ID(msg)
	fmt.Println(id)
	// Output: 7:/orders|1:1
}

func ExampleNew() {
	key := keys.New("order of the month", func(msg *message.Message) (string, error) {
		return msg.Metadata["order"] + "/" + msg.Metadata["month"], nil
	})
	msg := message.NewMessage("", nil)
	msg.Metadata["order"], msg.Metadata["month"] = "o-1", "2024-05"
	id, _ := key.ID(msg)
	fmt.Println(key, "is", id)
	// Output: order of the month is o-1/2024-05
}
