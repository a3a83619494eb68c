package main

// Payment is the event: an account owes an amount.
type Payment struct {
	// ID is made with the intent and is the same on every copy.
	ID       string `json:"id"`
	Account  string `json:"account"`
	Amount   int64  `json:"amount"` // minor units of the currency
	Currency string `json:"currency"`
}

// Charge is the command that follows from a payment. The key for the provider
// that will execute it travels in a header.
type Charge struct {
	PaymentID string `json:"payment_id"`
	Account   string `json:"account"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}
