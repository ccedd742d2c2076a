//go:build !soak

package main

// rounds is how often a test repeats what takes long: with the build tag soak ten times as often.
func rounds(n int) int { return n }
