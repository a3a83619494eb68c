package dedup

import "errors"

// Permanent marks an error that no retry can mend: the message is held for a
// person at once. Permanent(nil) is nil. The text is err's own, and errors.Is
// and errors.As see err.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err, or an error that it wraps or joins, was
// marked by [Permanent] or says so itself by a method "Permanent() bool", as
// [KeyError] does. The first error that has the method decides.
func IsPermanent(err error) bool {
	var mark interface{ Permanent() bool }
	return errors.As(err, &mark) && mark.Permanent()
}

type permanentError struct{ err error }

func (e *permanentError) Error() string   { return e.err.Error() }
func (e *permanentError) Unwrap() error   { return e.err }
func (e *permanentError) Permanent() bool { return true }
