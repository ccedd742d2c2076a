package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the paths of all documents.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", ".github/*.md", ".github/*/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 && !strings.HasPrefix(pattern, ".github") {
			t.Fatalf("%s: no such file, %v", pattern, err)
		}
		paths = append(paths, names...)
	}
	return paths
}

// prose returns a document without its examples.
func prose(t *testing.T, document string) string {
	t.Helper()
	return regexp.MustCompile("(?s)```.*?```|`[^`\n]*`").ReplaceAllStringFunc(readAll(t, document), func(code string) string {
		if strings.HasPrefix(code, "```") {
			return ""
		}
		return strings.NewReplacer("`", "", "[", "", "]", "").Replace(code) // headings may have code
	})
}

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(t *testing.T, document string) (all []string) {
	t.Helper()
	for _, heading := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(prose(t, document), -1) {
		text := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(text, " ", "-"))
	}
	return all
}

// TestLinks: every relative link and anchor in the documents leads somewhere, and the README leads to every document.
func TestLinks(t *testing.T) {
	t.Parallel()
	linked := map[string]bool{"README.md": true, "BENCH.md": true}
	for _, document := range documents(t) {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(prose(t, document), -1) {
			path, anchor, hasAnchor := strings.Cut(link[1], "#")
			if strings.Contains(path, ":") { // another site's
				continue
			}
			target := filepath.Join(filepath.Dir(document), path)
			if path == "" {
				target = document
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", document, link[1], err)
			} else if hasAnchor && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s: %s: no such heading; there are %q", document, link[1], anchors(t, target))
			}
			if document == "README.md" {
				linked[target] = true
			}
		}
	}
	for _, document := range documents(t) {
		if !linked[document] && !strings.HasPrefix(document, ".github") {
			t.Errorf("the README does not lead to %s", document)
		}
	}
}

// TestNamedDocuments: the documents that the program, the packaging and the Makefile name exist.
func TestNamedDocuments(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"*.go", "*.txt", "*.yaml", "*.sql", "Makefile", "tools/*", "deploy/[^ds]*", "deploy/debian/*", "deploy/state/*", "console/*"} {
		for _, name := range regexp.MustCompile(`\b(?:docs/)?[A-Za-z]+\.md\b`).FindAllString(readAll(t, pattern), -1) {
			_, err := os.Stat(name)
			if _, inTests := os.Stat(filepath.Join("testdata", name)); err != nil && inTests != nil {
				t.Errorf("%s: %v", pattern, err)
			}
		}
	}
}

// TestScaleExamples: the examples of docs/scale.md are parts of the files that deploy/test-scale runs.
func TestScaleExamples(t *testing.T) {
	t.Parallel()
	files := readAll(t, "deploy/scale/*")
	for _, language := range []string{"nginx", "ini", "haproxy", "yaml", "text"} {
		for _, block := range examples(t, "docs/scale.md", language) {
			if !strings.Contains(files, block) {
				t.Errorf("no file in deploy/scale has this:\n%s", block)
			}
		}
	}
}
