package main

import (
	"fmt"
	"slices"
	"strings"
)

// QR codes (ISO/IEC 18004) of version 6 in byte mode, with error correction level L and mask 0: the
// longest address of an enrolment fits into them.
const (
	qrSize   = 41     // modules on a side
	qrData   = 68     // data codewords of each of the two blocks
	qrFormat = 0x77c4 // level L and mask 0, with their error correction

	// The coefficients of (x-1)(x-2)…(x-2¹⁷), without the first: the divisor of error correction.
	qrDivisor = "\xef\xfb\xb7\x71\x95\xaf\xc7\xd7\xf0\xdc\x49\x52\xad\x4b\x20\x43\xd9\x92"
)

// qrSVG returns the QR code of a text of at most 134 bytes as an SVG image.
func qrSVG(text string) (string, error) {
	if len(text) > 2*qrData-2 {
		return "", fmt.Errorf("a text of %d bytes is too long for the QR code", len(text))
	}

	var path strings.Builder
	for y, row := range qrModules(text) {
		fmt.Fprintf(&path, "M0 %d.5", y)
		for _, dark := range row {
			if dark {
				path.WriteString("h1")
			} else {
				path.WriteString("m1 0")
			}
		}
	}

	// The image has a quiet zone of 4 modules on each side.
	const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 %d %[1]d" shape-rendering="crispEdges" ` +
		`role="img"><title>QR code</title><path fill="#fff" d="M-4-4h%[1]dv%[1]dh-%[1]dz"/>` +
		`<path stroke="#000" d="%s"/></svg>`
	return fmt.Sprintf(svg, qrSize+8, path.String()), nil
}

// qrModules returns the dark modules by row and column. The data goes in columns of two from the
// right, up and down in turn, around the patterns.
func qrModules(text string) (dark [qrSize][qrSize]bool) {
	const far = qrSize - 1
	var isPattern [qrSize][qrSize]bool
	set := func(x, y int, isDark bool) {
		dark[y][x] = isDark
		isPattern[y][x] = true
	}

	// The patterns: finders in three corners, an alignment near the fourth, and the timing.
	for i := range qrSize * qrSize {
		x := i % qrSize
		y := i / qrSize

		// ring returns how far the module is from a centre. A pattern has square rings.
		ring := func(cx, cy int) int { return max(x-cx, cx-x, y-cy, cy-y) }
		finder := min(ring(3, 3), ring(far-3, 3), ring(3, far-3))
		alignment := ring(far-6, far-6)

		switch {
		case finder <= 4:
			set(x, y, finder != 2 && finder != 4)
		case alignment <= 2:
			set(x, y, alignment != 1)
		case x == 6 || y == 6: // timing
			set(x, y, (x+y)%2 == 0)
		}
	}

	// The format, of which the code has two copies.
	positions := []int{0, 1, 2, 3, 4, 5, 7, 8, 7, 5, 4, 3, 2, 1, 0}
	for i, position := range positions {
		isDark := qrFormat>>i&1 == 1

		if i < 8 {
			set(8, position, isDark)
			set(far-i, 8, isDark)
		} else {
			set(position, 8, isDark)
			set(8, far-14+i, isDark)
		}
	}
	set(8, far-7, true) // the module that is always dark

	// The data, and a 0 for the modules that are left over.
	codewords := append(qrCodewords(text), 0)
	bit := 0
	for right := far; right > 0; right -= 2 {
		// The column of the timing has no data.
		if right == 6 {
			right--
		}

		for i := range qrSize * 2 {
			x := right - i%2
			y := i / 2
			if (right+1)&2 == 0 { // upwards
				y = far - y
			}

			if isPattern[y][x] {
				continue
			}

			isSet := codewords[bit/8]>>(7-bit%8)&1 == 1
			isMasked := (x+y)%2 == 0 // mask 0
			dark[y][x] = isSet != isMasked
			bit++
		}
	}
	return dark
}

// qrCodewords returns the data of the code with its error correction, the two blocks interleaved.
func qrCodewords(text string) (codewords []byte) {
	// Byte mode takes four bits, so that the length and the text are shifted by four.
	var data []byte
	last := byte(4)
	for _, b := range append([]byte{byte(len(text))}, text...) {
		data = append(data, last<<4|b>>4)
		last = b
	}
	data = append(data, last<<4)

	// Two bytes in turn fill the rest: 0xec and 0x11.
	for pad := byte(0xec); len(data) < 2*qrData; pad ^= 0xec ^ 0x11 {
		data = append(data, pad)
	}

	one := qrBlock(data[:qrData])
	two := qrBlock(data[qrData:])
	for i := range one {
		codewords = append(codewords, one[i], two[i])
	}
	return codewords
}

// qrBlock returns the data with its error correction: the remainder of the division by qrDivisor.
func qrBlock(data []byte) []byte {
	rest := append(slices.Clone(data), make([]byte, len(qrDivisor))...)

	for i := range data {
		for j := range len(qrDivisor) {
			rest[i+1+j] ^= qrMultiply(qrDivisor[j], rest[i])
		}
	}

	return append(slices.Clone(data), rest[len(data):]...)
}

// qrMultiply multiplies in the field GF(2⁸) modulo x⁸+x⁴+x³+x²+1.
func qrMultiply(a, b byte) (product byte) {
	for ; b > 0; b >>= 1 {
		product ^= a * (b & 1)
		a = a<<1 ^ (a>>7)*0x1d
	}
	return product
}
