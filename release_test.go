package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestNotice: NOTICE names every module and every file of data by others, and has the terms of LICENSE.
func TestNotice(t *testing.T) {
	t.Parallel()
	notice := readAll(t, "NOTICE")
	for _, module := range regexp.MustCompile(`(?m)^\t([a-z.]+/\S+?)(?:/v\d+)? v`).FindAllStringSubmatch(readAll(t, "go.mod"), -1) {
		if !regexp.MustCompile(`[\s,]` + regexp.QuoteMeta(module[1]) + `[\s,.]`).MatchString(notice) {
			t.Errorf("NOTICE lacks the module %s", module[1])
		}
	}
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		isData := strings.HasSuffix(name.Name(), ".csv") || strings.HasSuffix(name.Name(), ".txt") && name.Name() != "usage.txt"
		if isData && !strings.Contains(notice, "\nFiles: "+name.Name()+"\n") {
			t.Errorf("NOTICE lacks the file %s", name.Name())
		}
	}
	_, terms, _ := strings.Cut(readAll(t, "LICENSE"), "\n\n") // after the title
	_, terms, _ = strings.Cut(terms, "\n\n")                  // after the copyright
	terms = strings.ReplaceAll("\n"+strings.TrimSpace(terms), "\n\n", "\n.\n")
	if !strings.Contains(notice, "\nLicense: MIT"+strings.ReplaceAll(terms, "\n", "\n ")+"\n") {
		t.Error("NOTICE has other terms than LICENSE")
	}
}
