package main

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// qrText is as long as the address of an enrolment can be.
var qrText = "otpauth://totp/" + strings.Repeat("a", 30) + "@" + strings.Repeat("b", 35) + "?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Cairn"

// TestQRCodewords: the error correction is that of the standard. The polynomial of each block, with its error correction,
// has the roots 2^0 to 2^17.
func TestQRCodewords(t *testing.T) {
	t.Parallel()
	var exp [255]byte
	for i, x := 0, 1; i < 255; i++ {
		exp[i] = byte(x)
		if x *= 2; x > 255 {
			x ^= 0x11d
		}
	}

	times := func(a byte, power int) byte {
		if a == 0 {
			return 0
		}
		return exp[(slices.Index(exp[:], a)+power)%255]
	}

	for _, text := range []string{"", "a", qrText} {
		codewords := qrCodewords(text)
		if len(codewords) != 172 {
			t.Fatalf("%d codewords", len(codewords))
		}
		for block := range 2 {
			for root := range 18 {
				sum := byte(0)
				for i := block; i < len(codewords); i += 2 {
					sum = times(sum, root) ^ codewords[i]
				}
				if sum != 0 {
					t.Errorf("%.5q: block %d has not the root %d", text, block, root)
				}
			}
		}
	}

	data := qrCodewords("\x12\x34") // 0100 00000010 00010010 00110100 0000, and then the padding
	if got := hex.EncodeToString([]byte{data[0], data[2], data[4], data[6], data[8], data[10]}); got != "40212340ec11" {
		t.Errorf("data is %s", got)
	}
}

// TestQRImage: the image is the one that another program has read (TestPeerQR), and a longer text is refused.
func TestQRImage(t *testing.T) {
	t.Parallel()
	svg, err := qrSVG(qrText)
	if err != nil {
		t.Fatal(err)
	}

	sum := sha256.Sum256([]byte(svg))
	if got := hex.EncodeToString(sum[:]); got != "41784e5070b340c3b8a79088740b461107deac483c50150bf7ce49234661b53d" {
		t.Errorf("the image's hash is %s", got)
	}
	if len(qrText) != 134 {
		t.Errorf("the text has %d bytes", len(qrText))
	}
	if _, err := qrSVG(qrText + "a"); err == nil {
		t.Error("a text that is too long is accepted")
	}
}
