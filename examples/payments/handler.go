package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
)

const (
	enterPayment = `INSERT INTO public.ledger (payment_id, account, amount) VALUES ($1, $2, $3)`
	addToBalance = `INSERT INTO public.balances AS b (account, amount) VALUES ($1, $2)
		ON CONFLICT (account) DO UPDATE SET amount = b.amount + excluded.amount`
)

// charge applies a payment: a line in the ledger, the new balance, and the
// command to charge the account. They commit together.
func charge(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
	var p Payment
	if err := json.Unmarshal(msg.Payload, &p); err != nil {
		return nil, dedup.Permanent(fmt.Errorf("decode the payment: %w", err))
	}
	q.Queue(enterPayment, p.ID, p.Account, p.Amount)
	q.Queue(addToBalance, p.Account, p.Amount)
	command, err := json.Marshal(Charge{PaymentID: p.ID, Account: p.Account, Amount: p.Amount, Currency: p.Currency})
	if err != nil {
		return nil, fmt.Errorf("encode the command: %w", err)
	}
	return []*message.Message{message.NewMessage(watermill.NewUUID(), command)}, nil
}

// account is what a payment locks.
func account(msg *message.Message) string {
	var p Payment
	_ = json.Unmarshal(msg.Payload, &p) // charge says what is wrong
	return p.Account
}
