// A process of a Go program: see target.c.
package main

import (
	"io"
	"os"
)

func main() {
	os.Stdout.WriteString("ready\n")
	io.Copy(os.Stdout, os.Stdin)
}
