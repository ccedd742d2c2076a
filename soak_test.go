//go:build soak

package main

// rounds is how often a test repeats what takes long: without the build tag soak a tenth as often.
func rounds(n int) int { return 10 * n }
