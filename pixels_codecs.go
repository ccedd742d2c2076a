package main

import (
	"bytes"
	"compress/zlib"
	"io"
	"math/bits"
)

// Values of the tag Compression that are decoded: TIFF 6.0, sections 9 and 13; TIFF Technical Note
// 2 for Deflate, which has an older number too.
const (
	compressionLZW        = 5
	compressionDeflate    = 8
	compressionPackBits   = 32773
	compressionOldDeflate = 32946
)

// unpackBits decodes PackBits into a block: TIFF 6.0, section 9.
func unpackBits(encoded, block []byte) error {
	for len(block) > 0 {
		if len(encoded) < 2 {
			return errShortBlock
		}

		// -128 stands for nothing, any other number below 0 for copies of the next byte.
		n := int(int8(encoded[0]))
		encoded = encoded[1:]
		switch {
		case n == -128:
		case n < 0:
			count := min(1-n, len(block))
			for i := range count {
				block[i] = encoded[0]
			}
			block = block[count:]
			encoded = encoded[1:]
		default:
			count := min(n+1, len(block))
			if count > len(encoded) {
				return errShortBlock
			}
			copy(block, encoded[:count])
			block = block[count:]
			encoded = encoded[count:]
		}
	}
	return nil
}

// errShortBlock is the error for encoded data that ends before its block is full.
var errShortBlock = corruptf("its compressed data ends too early")

// startInflater makes the inflater read t.encoded: Deflate in a zlib stream.
func (t *tiffBlocks) startInflater() error {
	var err error
	input := bytes.NewReader(t.encoded)
	if t.inflater == nil {
		t.inflater, err = zlib.NewReader(input)
	} else {
		err = t.inflater.(zlib.Resetter).Reset(input, nil)
	}
	if err != nil {
		t.inflater = nil
		return contentError(err)
	}
	return nil
}

// inflate decodes the next rows of a block. After the last row inside the image it reads on to the
// end of the stream, because only there is a checksum to compare. Until there, a tile may have rows
// below the image. As in GDAL, a stream may be longer than its tile: its checksum is not compared.
func (t *tiffBlocks) inflate(rows []byte, isLast bool) error {
	_, err := io.ReadFull(t.inflater, rows)
	if err != nil {
		return contentError(err)
	}
	if !isLast {
		return nil
	}

	below := (int(t.table.rows) - t.rows) * t.layout.rowBytes
	_, err = io.CopyN(io.Discard, t.inflater, int64(below+1))
	if err != nil && err != io.EOF {
		return contentError(err)
	}
	return nil
}

// lzwCodes reads the codes of LZW: TIFF 6.0, section 13. They have their highest bit first; in
// files of old versions of libtiff, the lowest.
type lzwCodes struct {
	encoded []byte
	isOld   bool
	pending uint64 // bits that were not used yet
	have    int    // how many
}

// next returns the code in the next bits, ok false where the data ends.
func (c *lzwCodes) next(width int) (code int, ok bool) {
	for c.have < width {
		if len(c.encoded) == 0 {
			return 0, false
		}
		b := uint64(c.encoded[0])
		c.encoded = c.encoded[1:]
		if c.isOld {
			c.pending |= b << c.have
		} else {
			c.pending = c.pending<<8 | b
		}
		c.have += 8
	}

	c.have -= width
	mask := uint64(1)<<width - 1
	if c.isOld {
		code = int(c.pending & mask)
		c.pending >>= width
		return code, true
	}
	return int(c.pending >> c.have & mask), true
}

// lzwString is a string of the LZW table. Its bytes lie in the block that is being decoded.
type lzwString struct{ start, length int }

// unpackLZW decodes LZW into a block: TIFF 6.0, section 13. Codes become longer one code before it
// is necessary, but not in old files. These begin with the code 256, the lowest bit first.
func unpackLZW(encoded, block []byte) error {
	const (
		clearCode = 256
		endCode   = 257
		firstCode = 258
		leastBits = 9
		mostBits  = 12
	)

	isOld := len(encoded) >= 2 && encoded[0] == 0 && encoded[1]&1 == 1
	early := 1
	if isOld {
		early = 0
	}

	codes := lzwCodes{encoded: encoded, isOld: isOld}
	var table [1 << mostBits]lzwString
	next := firstCode // the code of the next string
	width := leastBits
	previous := lzwString{} // the string of the last code; empty after a clear code
	done := 0               // bytes of the block

	for done < len(block) {
		code, ok := codes.next(width)
		if !ok || code == endCode {
			return errShortBlock
		}
		if code == clearCode {
			next = firstCode
			width = leastBits
			previous = lzwString{}
			continue
		}

		// The string of the code next is the previous one and the byte behind it, its own first.
		entry := lzwString{done, 1}
		source := table[code]
		isNew := code == next && previous.length > 0
		switch {
		case code < clearCode:
			block[done] = byte(code)
		case isNew:
			entry.length = previous.length + 1
			source = previous
		case code < next:
			entry.length = source.length
		default:
			return corruptf("its compressed data is damaged")
		}
		entry.length = min(entry.length, len(block)-done)
		if code > endCode {
			for i := range entry.length { // the two may overlap
				block[done+i] = block[source.start+i]
			}
		}
		done += entry.length

		// The new string lies in the block already.
		if previous.length > 0 && next < len(table) {
			table[next] = lzwString{previous.start, previous.length + 1}
			next++
		}
		if next+early >= 1<<width && width < mostBits {
			width++
		}
		previous = entry
	}
	return nil
}

// reverseBits reverses the bits of each byte: TIFF 6.0, section 8, FillOrder 2.
func reverseBits(b []byte) {
	for i := range b {
		b[i] = bits.Reverse8(b[i])
	}
}

// undoDifferences adds to each sample of a row the sample before it of the same band: TIFF 6.0,
// section 14, Predictor 2. Samples have size bytes, the lowest first.
func undoDifferences(row []byte, size, bands int) {
	distance := size * bands
	for at := distance; at+size <= len(row); at += size {
		carry := uint(0)
		for i := at; i < at+size; i++ {
			sum := uint(row[i]) + uint(row[i-distance]) + carry
			row[i] = byte(sum)
			carry = sum >> 8
		}
	}
}

// undoFloatDifferences decodes a row of floating-point samples: Adobe, TIFF Technical Note 3,
// Predictor 3. First come the highest bytes of all samples, then the next ones; these bytes are
// stored as differences. scratch is a copy of the row.
func undoFloatDifferences(row, scratch []byte, size, bands int) {
	// This is undoDifferences for single bytes, in half the time: the sum is not read back.
	for band := range bands {
		sum := byte(0)
		for at := band; at < len(scratch); at += bands {
			sum += scratch[at]
			scratch[at] = sum
		}
	}

	samples := len(row) / size
	for plane := range size {
		at := size - 1 - plane
		for _, b := range scratch[plane*samples:][:samples] {
			row[at] = b
			at += size
		}
	}
}
