package dedup_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func TestPermanent(t *testing.T) {
	require.NoError(t, dedup.Permanent(nil))
	err := dedup.Permanent(fmt.Errorf("reading the order: %w", io.ErrUnexpectedEOF))
	require.EqualError(t, err, "reading the order: unexpected EOF")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, io.EOF, errors.Unwrap(dedup.Permanent(io.EOF)))
}

type sometimes bool

func (s sometimes) Error() string   { return "sometimes" }
func (s sometimes) Permanent() bool { return bool(s) }

func TestIsPermanent(t *testing.T) {
	marked := dedup.Permanent(io.EOF)
	for _, err := range []error{
		marked,
		dedup.Permanent(marked),
		fmt.Errorf("handler: %w", marked),
		errors.Join(io.ErrClosedPipe, marked),
		fmt.Errorf("%w and %w", io.ErrClosedPipe, errors.Join(errors.New("x"), fmt.Errorf("y: %w", marked))),
		&dedup.KeyError{Field: "id", Rule: "is missing"},
		fmt.Errorf("handler: %w", &dedup.KeyError{}),
		sometimes(true),
		dedup.Permanent(sometimes(false)),
	} {
		require.True(t, dedup.IsPermanent(err), "%v", err)
	}
	for _, err := range []error{nil, io.EOF, errors.New("permanent"), errors.New(marked.Error()), errors.Join(io.EOF, nil), sometimes(false)} {
		require.False(t, dedup.IsPermanent(err), "%v", err)
	}
}
