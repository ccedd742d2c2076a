//go:build soak

package main

import "testing"

// TestSoak kills instances in the middle of fifty analyses.
func TestSoak(t *testing.T) { killRounds(t, 50) }
