// The first process of a pod, and of a cluster's own PID namespace: it waits, reaps whoever is orphaned to it, and ends when it is told to.
// As the first of a PID namespace ends, the kernel ends all that live in there.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 64)
	signal.Notify(told, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		if <-told != syscall.SIGCHLD {
			os.Exit(0)
		}
	}
}
