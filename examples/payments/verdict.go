package main

// verdict is what the evidence says about the payments on the producer's list.
type verdict struct {
	effects    int // rows of the ledger
	doubled    int // payments with several rows, or several different commands
	lost       int // payments without a row, plus payments without a command
	mismatches int // accounts whose balance is not the sum of their payments
	received   int // different commands
	copies     int // messages beyond the first of each command
	strangers  int // rows and commands that fit no payment
	badKeys    int // payments without exactly one provider key of their own
}

// judge holds the evidence against the producer's list. It uses nothing of
// oncemill.
func judge(payments []Payment, e evidence) verdict {
	v := verdict{effects: len(e.ledger)}
	rows := v.countRows(payments, e.ledger)
	commands, keys := v.countCommands(payments, e.commands)
	balances := make(map[string]int64)
	for _, p := range payments {
		balances[p.Account] += p.Amount
		if rows[p.ID] > 1 || len(commands[p.ID]) > 1 {
			v.doubled++
		}
		if rows[p.ID] == 0 {
			v.lost++
		}
		if len(commands[p.ID]) == 0 {
			v.lost++
		}
		if len(keys[p.ID]) != 1 {
			v.badKeys++
		}
	}
	v.mismatches = differences(balances, e.balances)
	return v
}

type set map[string]bool

// add puts a value into the set at a key.
func add(sets map[string]set, key, value string) {
	if sets[key] == nil {
		sets[key] = make(set)
	}
	sets[key][value] = true
}

// countRows returns the number of rows by payment.
func (v *verdict) countRows(payments []Payment, ledger []entry) map[string]int {
	wanted := make(map[entry]bool, len(payments))
	for _, p := range payments {
		wanted[entry{p.ID, p.Account, p.Amount}] = true
	}
	rows := make(map[string]int)
	for _, row := range ledger {
		if !wanted[row] {
			v.strangers++
			continue
		}
		rows[row.PaymentID]++
	}
	return rows
}

// countCommands returns the logical ids and the provider keys by payment. A key
// that another payment has as well is not counted.
func (v *verdict) countCommands(payments []Payment, commands []command) (ids, keys map[string]set) {
	wanted := make(map[Charge]bool, len(payments))
	for _, p := range payments {
		wanted[Charge{p.ID, p.Account, p.Amount, p.Currency}] = true
	}
	ids, keys = make(map[string]set), make(map[string]set)
	owner, seen := make(map[string]string), make(set)
	for _, c := range commands {
		if seen[c.logicalID] {
			v.copies++
		}
		seen[c.logicalID] = true
		if !wanted[c.Charge] {
			v.strangers++
			continue
		}
		add(ids, c.PaymentID, c.logicalID)
		if first, taken := owner[c.providerKey]; c.providerKey != "" && (!taken || first == c.PaymentID) {
			owner[c.providerKey] = c.PaymentID
			add(keys, c.PaymentID, c.providerKey)
		}
	}
	v.received = len(seen)
	return ids, keys
}

// differences counts the accounts on which two sets of balances differ. One
// that is missing is none.
func differences(a, b map[string]int64) int {
	n := 0
	for account, amount := range a {
		if other, ok := b[account]; !ok || other != amount {
			n++
		}
	}
	for account := range b {
		if _, ok := a[account]; !ok {
			n++
		}
	}
	return n
}
