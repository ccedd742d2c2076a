package main

import (
	"archive/zip"
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// openRows opens samples that are not compressed: rows of l.rowBytes bytes from start on, stride
// bytes apart.
func openRows(r io.ReaderAt, start, stride int64, isBigEndian bool, l sampleLayout, m *extent) *raster {
	height := int(*m.Height)
	rows := min(height, max(1, rawBlockBytes/l.rowBytes))

	decode := func(_, row int, block []byte) (bool, error) {
		first := row * rows
		for y := first; y < min(first+rows, height); y++ {
			b := block[(y-first)*l.rowBytes:][:l.rowBytes]
			err := readFull(r, b, start+int64(y)*stride)
			if err != nil {
				return false, err
			}
			if isBigEndian {
				swapBytes(b, l.bytes())
			}
		}
		return true, nil
	}

	return newRaster(m, int(*m.Width), rows, l, decode)
}

// openEHdr opens Esri's BIL, BIP, BSQ or floating-point grid: Esri, "BIL, BIP, and BSQ raster
// files".
func (h *headerReader) openEHdr(m *extent) (*raster, error) {
	content, _, err := h.sidecar(maxSidecarBytes, "hdr")
	if err != nil {
		return nil, err
	}

	g := parseGridHeader(content)
	bands, bits, format := g.samples(strings.ToLower(path.Ext(h.name)))
	layout := strings.ToLower(g["layout"])

	// Rows hold all bands: sample by sample in BIP, band after band in BIL.
	interleaved := 1.0
	if layout == "bip" {
		interleaved = bands
	}
	l, err := newLayout(float64(*m.Width), interleaved, bits, format)
	if err != nil {
		return nil, err
	}
	stride := float64(l.rowBytes) * bands / interleaved
	if layout == "bsq" {
		stride = float64(l.rowBytes)
	} else if given := g.number("totalrowbytes"); given > 0 {
		stride = given
	}
	isInRange := stride >= float64(l.rowBytes) && stride < maxBlockBytes
	if !isInRange {
		return nil, corruptf("its rows have %d bytes, but follow each other after %v", l.rowBytes, stride)
	}

	start := max(0, g.number("skipbytes"))
	if math.IsNaN(start) {
		start = 0
	}
	order := strings.ToLower(g["byteorder"])
	isBigEndian := !strings.HasPrefix(order, "i") && !strings.HasPrefix(order, "l")
	return openRows(h.r, int64(start), int64(stride), isBigEndian, l, m), nil
}

// openHGT opens an SRTM tile: big-endian samples without header, perhaps in gzip or in a ZIP
// archive.
func (h *headerReader) openHGT(m *extent) (*raster, error) {
	file := io.NewSectionReader(h.r, 0, int64(h.size))
	l, err := newLayout(float64(*m.Width), 1, 16, sampleFormatInt)
	if err != nil {
		return nil, err
	}
	tile := &unpacked{
		size:   *m.Height * int64(l.rowBytes),
		budget: h.budget,
	}
	var samples io.ReaderAt = tile

	switch strings.ToLower(path.Ext(h.name)) {
	case ".gz":
		tile.open = func() (io.Reader, error) {
			file.Seek(0, io.SeekStart)
			return gzip.NewReader(bufio.NewReader(file))
		}
	case ".zip":
		archive, err := zip.NewReader(file, file.Size())
		if err != nil {
			return nil, contentError(err)
		}
		isTile := func(f *zip.File) bool { return strings.EqualFold(path.Ext(f.Name), ".hgt") }
		i := slices.IndexFunc(archive.File, isTile)
		if i < 0 {
			return nil, corruptf("the ZIP archive has no .hgt file")
		}
		tile.open = func() (io.Reader, error) { return archive.File[i].Open() }
	default:
		samples = file
	}
	return openRows(samples, 0, int64(l.rowBytes), true, l, m), nil
}

// unpacked is the content of a compressed file. It is read from front to back; a read before the
// last one begins again at the front.
type unpacked struct {
	open   func() (io.Reader, error) // returns the content from the front
	size   int64
	budget *decodeBudget // each start from the front takes size of it

	r      io.Reader // nil before the first read and after an error
	offset int64     // of the next byte

	damage error // nil while the content is sound
}

// ReadAt implements io.ReaderAt. At the end of the content its checksum must be right. An error
// about the content is an *extentError, and all later reads return it.
func (u *unpacked) ReadAt(p []byte, offset int64) (n int, err error) {
	if u.damage != nil {
		return 0, u.damage
	}
	if u.r == nil || offset < u.offset {
		u.offset = 0
		err = u.budget.spend(float64(u.size))
		if err == nil {
			u.r, err = u.open()
		}
	}

	if err == nil {
		_, err = io.CopyN(io.Discard, u.r, offset-u.offset)
	}
	if err == nil {
		_, err = io.ReadFull(u.r, p)
	}
	u.offset = offset + int64(len(p))
	if err == nil && u.offset == u.size {
		_, err = io.ReadFull(u.r, make([]byte, 1))
		switch err {
		case nil:
			err = corruptf("it is longer than the size that it states")
		case io.EOF:
			err = nil
		}
	}

	if err != nil {
		u.r = nil
		err = contentError(err)
		if statusOf(err) != fileStatusUnreadable {
			u.damage = err
		}
		return 0, err
	}
	return len(p), nil
}

// contentError returns an error of a decompressor as an *extentError, any other error as it is.
func contentError(err error) error {
	_, isCorrupt := errors.AsType[flate.CorruptInputError](err)
	switch err {
	case io.EOF, io.ErrUnexpectedEOF:
		return corruptf("its compressed data ends too early")
	case zlib.ErrChecksum, gzip.ErrChecksum, zip.ErrChecksum:
		return corruptf("its checksum is wrong")
	case zip.ErrAlgorithm:
		return unreadf("compressed with a rare method of ZIP")
	case zlib.ErrHeader, zlib.ErrDictionary, gzip.ErrHeader, zip.ErrFormat:
		isCorrupt = true
	}
	if isCorrupt {
		return corruptf("its compressed data is damaged")
	}
	return err
}

// openDTED opens a DTED file: MIL-PRF-89020B, section 3.11.3. A data record is a column of samples
// from the south, with 8 bytes before them and a checksum of 4 behind. A negative sample is a sign
// and a magnitude.
func (h *headerReader) openDTED(head []byte, m *extent) (*raster, error) {
	const (
		headerSize   = 80 + 648 + 2700 // of the records UHL, DSI and ACC
		sentinel     = 0xAA            // begins each data record
		prefixSize   = 8
		checksumSize = 4
	)

	width := int(*m.Width)
	height := int(*m.Height)
	recordSize := prefixSize + 2*height + checksumSize
	columns := min(width, max(1, rawBlockBytes/recordSize))
	start := int64(uhlRecord(head) + headerSize)
	r := h.r
	records := make([]byte, columns*recordSize)

	decode := func(column, _ int, block []byte) (bool, error) {
		first := column * columns
		count := min(columns, width-first)
		offset := start + int64(first)*int64(recordSize)
		err := readFull(r, records[:count*recordSize], offset)
		if err != nil {
			return false, err
		}

		for x := range count {
			record := records[x*recordSize:][:recordSize]
			data := record[:recordSize-checksumSize]
			sum := uint32(0)
			for _, b := range data {
				sum += uint32(b)
			}
			stated := binary.BigEndian.Uint32(record[len(data):])
			if record[0] != sentinel || sum != stated {
				return false, corruptf("the record of column %d at %d is damaged: "+
					"the checksum is %d, but it states %d",
					first+x,
					offset+int64(x*recordSize),
					sum,
					stated)
			}

			for y := range height {
				sample := binary.BigEndian.Uint16(data[prefixSize+2*(height-1-y):])
				binary.LittleEndian.PutUint16(block[2*(y*columns+x):], signedMagnitude(sample))
			}
		}
		return true, nil
	}

	l, err := newLayout(float64(columns), 1, 16, sampleFormatInt)
	return newRaster(m, columns, height, l, decode), err
}

// signedMagnitude returns a sample of DTED in two's complement. Some files have samples in two's
// complement, against the standard. As in GDAL, a sample far below all heights is taken for such.
func signedMagnitude(sample uint16) uint16 {
	const (
		sign   = 1 << 15
		lowest = 16000 // metres below 0
		void   = 32767 // as a magnitude
	)

	magnitude := sample &^ sign
	isTwosComplement := magnitude > lowest && magnitude != void
	if sample&sign == 0 || isTwosComplement {
		return sample
	}
	return -magnitude
}

// asciiRows is the samples of an ASCII grid: numbers in any number of lines.
type asciiRows struct {
	r      io.ReaderAt
	size   int64
	width  int
	height int
	rows   int     // of a block
	starts []int64 // where each block begins, as far as the file was read; one more after the last
	err    error   // why the file cannot be read any farther; nil while it can
}

// openASCII opens an ASCII grid. Its decoded samples are 64-bit numbers.
func (h *headerReader) openASCII(head []byte, m *extent) (*raster, error) {
	l, err := newLayout(float64(*m.Width), 1, 64, sampleFormatFloat)
	if err != nil {
		return nil, err
	}
	err = h.budget.spend(float64(h.size)) // the last row may need all of the file
	if err != nil {
		return nil, err
	}
	a := &asciiRows{
		r:      h.r,
		size:   int64(h.size),
		width:  int(*m.Width),
		height: int(*m.Height),
		rows:   min(int(*m.Height), max(1, rawBlockBytes/l.rowBytes)),
		starts: []int64{int64(samplesStart(head))},
	}

	return newRaster(m, a.width, a.rows, l, a.decode), nil
}

// decode is raster.decode. Lines have no fixed length, so it reads the blocks before if they were
// not read yet.
func (a *asciiRows) decode(_, row int, block []byte) (bool, error) {
	for len(a.starts) <= row {
		if a.err != nil {
			return false, a.err
		}
		next, err := a.scan(a.starts[len(a.starts)-1], a.rows*a.width, nil)
		if err == nil {
			a.starts = append(a.starts, next)
		}
		a.err = err
	}

	rows := min(a.rows, a.height-row*a.rows)
	next, err := a.scan(a.starts[row], rows*a.width, block)
	isNew := row == len(a.starts)-1
	if err == nil && isNew {
		a.starts = append(a.starts, next)
	}
	return true, err
}

// scan reads so many numbers from an offset on into a block, unless it is nil. It returns the
// offset behind them.
func (a *asciiRows) scan(offset int64, count int, block []byte) (next int64, err error) {
	words := bufio.NewScanner(io.NewSectionReader(a.r, offset, a.size-offset))
	words.Split(func(data []byte, isLast bool) (int, []byte, error) {
		length, word, err := bufio.ScanWords(data, isLast)
		offset += int64(length)
		return length, word, err
	})

	for i := range count {
		isRead := words.Scan()
		switch err := words.Err(); {
		case err == bufio.ErrTooLong:
			return 0, corruptf("the number at %d is too long", offset)
		case err != nil:
			return 0, err
		case !isRead:
			return 0, corruptf("the file ends at %d, and %d samples are missing", offset, count-i)
		}
		if block == nil {
			continue
		}

		v, err := asciiNumber(words.Text())
		if err != nil {
			return 0, corruptf("%.20q before %d is not a number", words.Text(), offset)
		}
		binary.LittleEndian.PutUint64(block[8*i:], math.Float64bits(v))
	}
	return offset, nil
}

// asciiNumber reads a sample of an ASCII grid: a number or a word for a void.
func asciiNumber(text string) (float64, error) {
	v, ok := parseNumber(text)
	if ok {
		return v, nil
	}

	// Microsoft's C library writes NaN as 1.#QNAN or -1.#IND.
	if strings.Contains(text, "#") {
		return math.NaN(), nil
	}
	return strconv.ParseFloat(text, 64)
}
