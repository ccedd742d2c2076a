//go:build peers

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPeerQR: ZBar reads QR codes of all lengths, also when 36 modules of them are gone.
func TestPeerQR(t *testing.T) {
	dir := t.TempDir()
	const long = "otpauth://totp/Ada-%3A0123456789@cairn.example.org?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Cairn"
	texts := []string{qrText}
	for n := 1; n <= 134; n += 7 {
		texts = append(texts, strings.Repeat(long, 2)[:n])
	}
	for _, text := range texts {
		svg := must(qrSVG(text))
		damaged := strings.Replace(svg, "</svg>", `<path d="M20 20h6v6h-6z"/></svg>`, 1)
		for _, image := range []string{svg, damaged} {
			png := filepath.Join(dir, "qr.png")
			draw := exec.Command("rsvg-convert", "--width=300", "--output="+png)
			draw.Stdin = strings.NewReader(image)
			if output, err := draw.CombinedOutput(); err != nil {
				t.Fatalf("rsvg-convert: %v\n%s", err, output)
			}
			read, err := exec.Command("zbarimg", "--quiet", "--raw", png).Output()
			if err != nil || strings.TrimSuffix(string(read), "\n") != text {
				t.Errorf("%q is read as %q (%v)", text, read, err)
			}
		}
	}
}

// TestPeerTOTP: oathtool makes the codes that a service accepts.
func TestPeerTOTP(t *testing.T) {
	clock := &testClock{}
	ts := startTOTP(t, clock)
	c := ts.signInCheaply("ada")
	phone := c.begin(clock)
	at := clock.now().UTC().Format("2006-01-02 15:04:05 UTC")
	code := strings.TrimSpace(string(must(exec.Command("oathtool", "--totp", "--base32", "--now="+at, phone.text).Output())))
	c.must(200, "POST", totpPath+"/confirm", map[string]string{"otp": code})
}
