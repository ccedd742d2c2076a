package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Digests of the empty file.
const (
	emptyMD5    = "d41d8cd98f00b204e9800998ecf8427e"
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// TestChecksumLists: each form of a list is read, and each line that is none is named.
func TestChecksumLists(t *testing.T) {
	t.Parallel()
	const list = "a/b/MD5SUMS"
	for _, test := range []struct {
		name  string
		list  string
		text  string
		want  []string // line, path, algorithm and digest
		fault string
	}{
		{"text", list, emptyMD5 + "  x.tif\n", []string{"1 a/b/x.tif MD5 " + emptyMD5}, ""},
		{"binary", list, emptyMD5 + " *x.tif\n", []string{"1 a/b/x.tif MD5 " + emptyMD5}, ""},
		{"one space", list, emptyMD5 + " x.tif\n", []string{"1 a/b/x.tif MD5 " + emptyMD5}, ""},
		{"tab", list, emptyMD5 + "\tx.tif\n", []string{"1 a/b/x.tif MD5 " + emptyMD5}, ""},
		{"SHA-256", list, emptySHA256 + "  x.tif", []string{"1 a/b/x.tif SHA256 " + emptySHA256}, ""},
		{"capitals", list, strings.ToUpper(emptyMD5) + "  X.TIF\n", []string{"1 a/b/X.TIF MD5 " + emptyMD5}, ""},
		{"BSD", list, "MD5 (x (1).tif) = " + emptyMD5 + "\n", []string{"1 a/b/x (1).tif MD5 " + emptyMD5}, ""},
		{"BSD SHA-256", list, "SHA256 (x) = " + emptySHA256 + "\n", []string{"1 a/b/x SHA256 " + emptySHA256}, ""},
		{"OpenSSL", list, "SHA2-256(x)= " + emptySHA256 + "\n", []string{"1 a/b/x SHA256 " + emptySHA256}, ""},
		{"bare", "a/x.tif.md5", emptyMD5 + "\n", []string{"1 a/x.tif MD5 " + emptyMD5}, ""},
		{"bare at the top", "x.tif.sha256", emptySHA256 + "  \r\n", []string{"1 x.tif SHA256 " + emptySHA256}, ""},
		{"folder", "MD5SUMS", emptyMD5 + "  ./sub/x.tif\n", []string{"1 sub/x.tif MD5 " + emptyMD5}, ""},
		{"Windows", list, emptyMD5 + ` *sub\x.tif` + "\r\n", []string{"1 a/b/sub/x.tif MD5 " + emptyMD5}, ""},
		{"escaped", list, `\` + emptyMD5 + `  x\\y\nz` + "\n", []string{`1 a/b/x\\y` + "\nz MD5 " + emptyMD5}, ""},
		{"escaped BSD", list, `\MD5 (x\\n) = ` + emptyMD5 + "\n", []string{`1 a/b/x\\n MD5 ` + emptyMD5}, ""},
		{"not UTF-8", list, emptyMD5 + "  \xe4.tif\n", []string{`1 a/b/\xe4.tif MD5 ` + emptyMD5}, ""},
		{"spaces", list, emptyMD5 + "   x \n", []string{"1 a/b/ x  MD5 " + emptyMD5}, ""},
		{"byte order mark, comments, empty lines", list, "\ufeff# by md5sum\r\n\r\n; x\n" + emptyMD5 + "  x\r\n", []string{"4 a/b/x MD5 " + emptyMD5}, ""},

		{"standard input", "a/x.tif.md5", emptyMD5 + "  -\n", []string{"1 a/x.tif MD5 " + emptyMD5}, ""},
		{"standard input, BSD", "x.tif.MD5", "MD5 (-) = " + emptyMD5, []string{"1 x.tif MD5 " + emptyMD5}, ""},
		{"standard input, OpenSSL", "x.tif.sha256sum", "SHA2-256(stdin)= " + emptySHA256, []string{"1 x.tif SHA256 " + emptySHA256}, ""},
		{"standard input, old OpenSSL", "x.tif.md5", "(stdin)= " + emptyMD5, []string{"1 x.tif MD5 " + emptyMD5}, ""},
		{"standard input, other lists", list, emptyMD5 + " *-\nMD5(stdin)= " + emptyMD5, nil, ""},
		{"standard input, no file's name", "x.md5", emptyMD5 + "  -\n", nil, ""},
		{"a file that is called so", list, emptyMD5 + "  stdin\n" + emptyMD5 + "  ./-\n", []string{
			"1 a/b/stdin MD5 " + emptyMD5, "2 a/b/- MD5 " + emptyMD5}, ""},

		{"a text", list, "Checksums:\n" + emptyMD5 + "  x\nend\n", []string{"2 a/b/x MD5 " + emptyMD5}, "line 1: not understood (and 1 line more)"},
		{"SHA-1", list, emptyMD5 + "00000000  x\n", nil, "line 1: neither MD5 nor SHA-256"},
		{"no name", list, emptyMD5 + "  \n", []string{"1 a/b/MD5SUMS MD5 " + emptyMD5}, ""},
		{"above", list, emptyMD5 + "  ../x\n", nil, "line 1: no file in or below the list's directory can have this name"},
		{"above, Windows", list, emptyMD5 + `  ..\x` + "\n", nil, "line 1: no file in or below the list's directory can have this name"},
		{"absolute", list, emptyMD5 + "  /etc/passwd\n", nil, "line 1: no file in or below the list's directory can have this name"},
		{"up and down", list, emptyMD5 + "  s/../../../x\n", nil, "line 1: no file in or below the list's directory can have this name"},
		{"null", list, emptyMD5 + "  x\x00y\n", nil, "line 1: no file in or below the list's directory can have this name"},
		{"long name", list, emptyMD5 + "  " + strings.Repeat("x", maxPath) + "\n", nil, "line 1: no file in or below the list's directory can have this name"},
		{"long line", list, emptyMD5 + "  x\n" + strings.Repeat("x", 1<<17), []string{"1 a/b/x MD5 " + emptyMD5}, "the list is too long: it was read to line 1"},
		{"UTF-16", list, "\xff\xfed\x004\x001\x00\n", nil, "line 1: not understood"},
		{"nothing", list, "", nil, ""},
		{"most lines", list, strings.Repeat("\n", maxListLines), nil, ""},
		{"many lines", list, strings.Repeat("\n", maxListLines+1), nil, "the list is too long: it was read to line 1000000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			fault, err := readChecksums(test.list, strings.NewReader(test.text), func(c listedChecksum) error {
				got = append(got, fmt.Sprint(c.line, " ", c.path, " ", c.algorithm, " ", c.digest))
				return nil
			})
			if err != nil || !slices.Equal(got, test.want) || fault != test.fault {
				t.Errorf("read %q, fault %q (%v), want %q, %q", got, fault, err, test.want, test.fault)
			}
		})
	}
}
