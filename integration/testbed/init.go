package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// Environment variables that carry the role and the arguments into a child
// that runs a copy of this binary.
const (
	childEnv = "ONCEMILL_TESTBED_CHILD"
	argsEnv  = "ONCEMILL_TESTBED_ARGS"
)

// ErrNotOurs is returned for stopping, starting or killing a server that was
// given by ONCEMILL_DATABASE_URL or ONCEMILL_NATS_URL: the bed only uses it.
var ErrNotOurs = errors.New("testbed: the server was given by the environment and is not ours to stop or start: unset ONCEMILL_DATABASE_URL and ONCEMILL_NATS_URL")

// roles are the things a copy of this binary can be started as.
var roles = map[string]func(){
	"guard": runGuard,
	"nats":  runNATS,
}

// ready is set by Init. Without it a child would run the whole test binary
// again instead of its role, so nothing may be started before.
var ready atomic.Bool

// childArgs are the arguments of this process if it is a child.
var childArgs []string

// Role registers run under name, so that [StartWorker] can run it in a process
// of its own. Call it before [Main] or [Init]: the child finds its role there.
// The process ends with status 0 when run returns. A name that is taken panics.
func Role(name string, run func()) {
	if _, taken := roles[name]; taken || ready.Load() {
		panic(fmt.Sprintf("testbed: role %q: names are given once, and before Main or Init", name))
	}
	roles[name] = run
}

// Args are the arguments that [StartWorker] gave this process; none in the parent.
func Args() []string { return childArgs }

// Init must be the first line of a main function that uses the bed; tests call
// [Main] instead. In a process that was started as a child it runs the child's
// role and does not return.
func Init() {
	name := os.Getenv(childEnv)
	if name == "" {
		ready.Store(true)
		return
	}
	run, known := roles[name]
	if !known {
		fmt.Fprintf(os.Stderr, "testbed: no role %q: call testbed.Role before Main or Init\n", name)
		os.Exit(2)
	}
	takeArgs()
	ready.Store(true)
	if name != "guard" {
		go exitWithParent()
	}
	run()
	os.Exit(0)
}

// takeArgs moves role and arguments out of the environment, so that children
// of this child do not inherit them.
func takeArgs() {
	if raw := os.Getenv(argsEnv); raw != "" {
		if err := json.Unmarshal([]byte(raw), &childArgs); err != nil {
			fmt.Fprintf(os.Stderr, "testbed: %s: %v\n", argsEnv, err)
			os.Exit(2)
		}
	}
	_ = os.Unsetenv(childEnv)
	_ = os.Unsetenv(argsEnv)
}

// exitWithParent ends this process when its standard input closes, which the
// kernel does when the parent is gone. The guard knows most children by pid;
// this covers one that was started in the parent's last moment.
func exitWithParent() {
	buf := make([]byte, 64)
	for {
		if _, err := os.Stdin.Read(buf); err != nil {
			os.Exit(3)
		}
	}
}

// selfEnv is the environment of a copy of this binary in the given role.
func selfEnv(role string, args []string) ([]string, error) {
	if !ready.Load() {
		return nil, errors.New("testbed: not initialised: call testbed.Main from TestMain, or testbed.Init as the first line of main")
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("testbed: arguments of role %q: %w", role, err)
	}
	env := make([]string, 0, len(os.Environ())+2)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, childEnv+"=") && !strings.HasPrefix(kv, argsEnv+"=") {
			env = append(env, kv)
		}
	}
	return append(env, childEnv+"="+role, argsEnv+"="+string(raw)), nil
}
