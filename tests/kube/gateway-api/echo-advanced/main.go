// The application of the suite's mesh tests. Under the name that the suite gives its image it does what
// the suite asks of that program: with a URL it is a client that prints what it was answered, else it serves.
//
// The printed lines are those that conformance/utils/echo of the suite reads.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	run := serve
	for _, argument := range os.Args[1:] {
		if strings.Contains(argument, "://") {
			run = request
		}
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
