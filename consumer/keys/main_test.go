package keys_test

import (
	"testing"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }
