package main

import (
	"fmt"
	"hash/maphash"
	"math"
	"strconv"
	"strings"
)

// nameNumber is a number in a path.
type nameNumber struct {
	from  int // its first byte in the path
	to    int // behind its last byte
	value float64
	sign  float64 // -1 after the letter S or W, 1 after N or E; 0: there is no such letter
}

// maxNameNumbers is how many numbers of a path are looked at: those of the name come first, then
// those of its folder.
const maxNameNumbers = 8

// nameScales returns the units in which names give coordinates, as multiples of the unit of the
// CRS. For metres these are m, km, 10 km and 100 km.
func nameScales() [4]float64 { return [4]float64{1, 1e3, 1e4, 1e5} }

// numbersOf returns the numbers of a file's name, then those of its folder, and the path without
// them: "a/E#/N#.dt1". E stands for the letters of east and west, N for those of north and south.
func numbersOf(name string) (numbers []nameNumber, pattern string) {
	base := strings.LastIndexByte(name, '/') + 1
	folder := strings.LastIndexByte(name[:max(base-1, 0)], '/') + 1

	isDigit := func(i int) bool { return i < len(name) && name[i] >= '0' && name[i] <= '9' }
	isLetter := func(i int) bool { return i >= 0 && (name[i]|0x20) >= 'a' && (name[i]|0x20) <= 'z' }

	var inFolder []nameNumber
	rest := []byte(name[:folder])
	for i := folder; i < len(name); i++ {
		if !isDigit(i) {
			rest = append(rest, name[i])
			continue
		}

		n := nameNumber{from: i}
		for isDigit(i + 1) {
			i++
		}

		n.to = i + 1
		n.value, _ = strconv.ParseFloat(name[n.from:n.to], 64)

		// A single letter before the number may be that of a quarter of the globe.
		if before := n.from - 1; isLetter(before) && !isLetter(before-1) {
			const letters = "nsew"
			quarter := strings.IndexByte(letters, name[before]|0x20)
			if quarter >= 0 {
				rest[len(rest)-1] = "NNEE"[quarter]
				n.sign = 1 - 2*float64(quarter%2) // negative for S and W
			}
		}

		rest = append(rest, '#')
		if n.from < base {
			inFolder = append(inFolder, n)
		} else {
			numbers = append(numbers, n)
		}
	}

	numbers = append(numbers, inFolder...)
	return numbers[:min(len(numbers), maxNameNumbers)], string(rest)
}

// fits returns in which units the number is the coordinate: bit i stands for nameScales()[i].
func (n nameNumber) fits(coordinate float64) (fits uint32) {
	for i, scale := range nameScales() {
		inUnit := math.Round(coordinate / scale)

		isEqual := n.value == math.Abs(inUnit)
		if n.sign != 0 {
			isEqual = n.sign*n.value == inUnit
		}
		if isEqual {
			fits |= 1 << i
		}
	}

	return fits
}

// readName stores which numbers of a path can be the left, the lower and the upper edge: four bits
// of fits for each number.
func (s *fileSet) readName(r *fileRecord, name string) {
	numbers, pattern := numbersOf(name)
	if len(numbers) < 2 {
		return
	}

	r.pattern = maphash.String(s.seed, pattern)
	for i, n := range numbers {
		for edge, at := range [3]float64{r.x, r.y, r.y + r.h} {
			r.fits[edge] |= n.fits(at) << (4 * i)
		}
	}
}

// nameRule says which numbers of the names of a pattern are the coordinates.
type nameRule struct {
	x nameCoordinate
	y nameCoordinate
}

// nameCoordinate is a coordinate in names.
type nameCoordinate struct {
	edge  int // of fileRecord.fits
	bit   uint32
	at    int // which number
	scale float64
	files int // how many names fit
}

// Ranks of a name, from best to worst.
const (
	nameFollows     = iota // it follows the rule of its pattern
	nameSaysNothing        // it has no coordinates
	nameContradicts        // its coordinates are not those of the file
)

// checkNames finds the rule of each pattern, and the files whose names contradict it. A pattern has
// a rule if three quarters of its files follow that rule. A name without coordinates contradicts
// nothing.
func (s *fileSet) checkNames() {
	s.rules = map[uint64]nameRule{}
	for files := range s.groups(func(r *fileRecord) uint64 { return r.pattern }) {
		rule := nameRule{x: s.usualCoordinate(files, 0)}

		// Of the lower and the upper edge, the one that more names have.
		rule.y = s.usualCoordinate(files, 1)
		if upper := s.usualCoordinate(files, 2); upper.files > rule.y.files {
			rule.y = upper
		}

		hasBoth := min(rule.x.files, rule.y.files) > 0
		if hasBoth && rule.x.at != rule.y.at {
			s.rules[s.files[files[0]].pattern] = rule
		}
	}

	for i := range s.files {
		r := &s.files[i]
		rule, hasRule := s.rules[r.pattern]
		isBroken := hasRule && !(rule.x.fits(r) && rule.y.fits(r))

		switch {
		case isBroken:
			r.nameRank = nameContradicts
			detail := fmt.Sprintf("its lower left corner is at %.10g, %.10g", r.x, r.y)
			s.foundIn("name", int32(i), detail)
		case r.isNameWrong:
			r.nameRank = nameContradicts
			s.foundIn("name", int32(i), "")
		case !hasRule:
			r.nameRank = nameSaysNothing
		}
	}
}

// fits reports whether the name of a file has the coordinate.
func (c nameCoordinate) fits(r *fileRecord) bool { return r.fits[c.edge]&c.bit != 0 }

// usualCoordinate returns which number of the names, in which unit, is the coordinate of an edge.
// At least four files are needed, and three quarters of them must agree. If several numbers fit, it
// returns the one in the finest unit. If none fits, the result has no files.
func (s *fileSet) usualCoordinate(files []int32, edge int) nameCoordinate {
	for unit, scale := range nameScales() {
		for n := range maxNameNumbers {
			c := nameCoordinate{
				edge:  edge,
				bit:   1 << (4*n + unit),
				at:    n,
				scale: scale,
			}
			for _, i := range files {
				if c.fits(&s.files[i]) {
					c.files++
				}
			}

			isUsual := c.files*4 >= len(files)*3
			if len(files) >= 4 && isUsual {
				return c
			}
		}
	}

	return nameCoordinate{}
}

// rename returns the path of the tile that lies that far east and north of the named one. It is ""
// if a name of this rule cannot express the place.
func (rule nameRule) rename(name string, east, north float64) string {
	numbers, _ := numbersOf(name)
	if len(numbers) <= max(rule.x.at, rule.y.at) {
		return ""
	}

	x := numbers[rule.x.at].text(east / rule.x.scale)
	y := numbers[rule.y.at].text(north / rule.y.scale)
	if x == "" || y == "" {
		return ""
	}

	// The number that comes last is replaced first, so that the offset of the other stays right.
	first := numbers[rule.x.at]
	second := numbers[rule.y.at]
	if first.from > second.from {
		first, second = second, first
		x, y = y, x
	}

	return name[:first.from] + x + name[first.to:second.from] + y + name[second.to:]
}

// text returns the sum of the number and by, with as many digits. It is "" if the sum is not a
// whole number or has another sign.
func (n nameNumber) text(by float64) string {
	value := n.value + by
	if n.sign < 0 {
		value = n.value - by
	}

	isWhole := math.Abs(by-math.Round(by)) < 0.01

	// There is no S0 or W0.
	isSameSide := value > 0 || value == 0 && n.sign >= 0
	if !isWhole || !isSameSide {
		return ""
	}

	return fmt.Sprintf("%0*.0f", n.to-n.from, value)
}
