package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// heightRecord holds what the checks know of the heights of a file.
type heightRecord struct {
	heightFigures
	file     int32
	metres   float64                 // the length of its unit of heights
	step     float64                 // the least step to a neighbour that counts, in metres
	edges    [4][edgeHeights]float32 // north, east, south, west; in metres, NaN for a void
	beside   [4]int32                // the files in the next cells of the grid, in the same order, or noFile
	isFaulty bool                    // a finding says why its edges are unlike those of its neighbours
}

// addHeights adds the heights of a file, which may be nil.
func (s *fileSet) addHeights(r *fileRecord, found *fileHeights) {
	isRaster := r.status == fileStatusOK || r.status == fileStatusNoBBox || r.status == fileStatusNoGeoref
	if !isRaster || r.unread != "" {
		return
	}

	if found == nil {
		s.unmeasured["not read yet"]++
		return
	}
	if found.Statistics == nil {
		s.unmeasured[found.Reason]++
		return
	}

	h := &heightRecord{
		heightFigures: found.Statistics.heightFigures,
		file:          int32(len(s.files)),
		metres:        metresOf(&r.heightUnit),
		step:          0.5,
		beside:        [4]int32{noFile, noFile, noFile, noFile},
	}
	if strings.Contains(r.sampleType, "int") {
		h.step = 3 // rounded heights make steps, too
	}

	for side, heights := range found.Statistics.Edges {
		for i, v := range heights {
			h.edges[side][i] = float32(float64(v) * h.metres)
		}
	}
	s.heights = append(s.heights, h)
	r.heights = h
}

// heightsNotExamined returns a sentence about the rasters whose heights were not read, if there are
// any.
func (s *fileSet) heightsNotExamined() []string {
	switch {
	case len(s.unmeasured) > 0:
		return []string{"Heights were not examined: " + mostFrequent(s.unmeasured) + "."}
	case len(s.heights) == 0:
		return []string{"Heights were not examined."}
	}
	return []string{}
}

// measured returns the heights of a file, or nil if they were not read. The file may be noFile.
func (s *fileSet) measured(file int32) *heightRecord {
	if file == noFile {
		return nil
	}
	return s.files[file].heights
}

// sides returns the steps of row and column to the neighbours of a tile, in the order of edges.
func sides() [4][2]int64 { return [4][2]int64{{1, 0}, {0, 1}, {-1, 0}, {0, -1}} }

// checkHeights finds wrong heights: in each file, then in comparison with its neighbours.
func (s *fileSet) checkHeights() {
	for i := range s.grids {
		g := &s.grids[i]
		for _, c := range g.cells {
			h := s.measured(c.file)
			if h == nil {
				continue
			}
			for side, step := range sides() {
				if next := g.at(c.row+step[0], c.column+step[1], 1); len(next) > 0 {
					h.beside[side] = next[0].file
				}
			}
		}
	}

	// A file gets only the first of these findings, because the others would follow from it.
	alone := [...]struct {
		code string
		find func(h *heightRecord) string
	}{
		{"decode", (*heightRecord).findDamage},
		{"empty", (*heightRecord).findNothing},
		{"undeclared_nodata", (*heightRecord).findUndeclared},
		{"flat", s.findFlat},
		{"range", (*heightRecord).findRange},
		{"range", s.findFeet},
		{"spikes", (*heightRecord).findSpikes},
	}
	wanted, isExpected := readHeightRange(s.expected.Heights)
	for _, h := range s.heights {
		for _, kind := range alone {
			if detail := kind.find(h); detail != "" {
				s.foundIn(kind.code, h.file, detail)
				h.isFaulty = kind.code != "spikes"
				break
			}
		}

		// Heights that are not expected may still be right, so the other checks use them.
		if isExpected && !h.isFaulty && !h.isWithin(wanted, h.Min, h.Max) {
			s.foundIn("range", h.file, h.outside(wanted))
		}
	}

	s.checkVoids()
	s.checkSeams()
}

// findDamage says how many blocks cannot be decoded. Like the functions below, it returns the
// detail of a finding, or "" if there is none.
func (h *heightRecord) findDamage() string {
	if h.BadBlocks == 0 {
		return ""
	}
	return fmt.Sprintf("%s cannot be decoded, first %s", plural(h.BadBlocks, "block"), valueOr(h.Damage, ""))
}

// findNothing says that all samples are void.
func (h *heightRecord) findNothing() string {
	if h.Voids < h.Samples {
		return ""
	}
	return fmt.Sprintf("all of its %d samples are void", h.Samples)
}

// findUndeclared says which height stands for voids. Such heights are the usual values of nodata.
// The height 0 is one if it is frequent inside a tile, no edge lies below 50 m, and all other
// heights are far from 0.
func (h *heightRecord) findUndeclared() string {
	valid := float64(h.Samples - h.Voids)
	frequent := float64(h.ModeSamples)
	for _, v := range [...]height{h.Mode, h.Min, h.Max} {
		isUsual := slices.Contains([]height{-9999, -99999, -999999, -32767, -32768}, v) || math.Abs(float64(v)) >= 1e30
		switch {
		case isUsual && v == h.Mode:
			return fmt.Sprintf("%g in %.3g %% of its samples", v, 100*frequent/valid)
		case isUsual:
			return fmt.Sprintf("%g among its heights", v)
		}
	}

	lowest := float32(math.Inf(1))
	for _, edge := range h.edges {
		for _, v := range edge {
			if v < lowest { // not if it is void
				lowest = v
			}
		}
	}

	// The mean and the deviation of the heights that are not 0.
	others := valid - frequent
	mean := float64(h.Mean) * valid / others
	square := (float64(h.Deviation)*float64(h.Deviation)+float64(h.Mean)*float64(h.Mean))*valid/others - mean*mean
	isFar := mean > 4*math.Sqrt(max(square, 0))

	isHole := h.Mode == 0 && h.Min == 0 && lowest >= 50 && isFinite(float64(lowest))
	if !isHole || !isFar {
		return ""
	}
	return fmt.Sprintf("0 in %.3g %% of its samples, where the others have a mean of %.4g", 100*frequent/valid, mean)
}

// isWithin reports whether heights of the file, from one to another, lie in a range.
func (h *heightRecord) isWithin(r heightRange, from, to height) bool {
	return float64(from)*h.metres >= r.low && float64(to)*h.metres <= r.high
}

// outside says that the heights do not lie in a range.
func (h *heightRecord) outside(r heightRange) string {
	return fmt.Sprintf("heights from %.7g to %.7g, not within %s m", h.Min, h.Max, r)
}

// findRange says that no terrain has such heights. Spikes in terrain are findings of their own.
func (h *heightRecord) findRange() string {
	const widest = 3_500                     // deviation, in metres
	ofTerrain := heightRange{-12_000, 9_000} // the deepest sea has 10,900
	if h.isWithin(ofTerrain, h.Min, h.Max) {
		return ""
	}

	isTerrain := h.isWithin(ofTerrain, h.Mean, h.Mean) && float64(h.Deviation)*h.metres < widest
	areSpikes := h.Spikes > 0 && isTerrain
	if areSpikes {
		return ""
	}
	return h.outside(ofTerrain)
}

// findSpikes says how many heights stand out.
func (h *heightRecord) findSpikes() string {
	if h.Spikes == 0 {
		return ""
	}
	return fmt.Sprintf("%s, first at column %d, row %d; heights from %.7g to %.7g",
		plural(h.Spikes, "spike"), h.SpikeAt[0], h.SpikeAt[1], h.Min, h.Max)
}

// pairs returns the heights of a tile along one side, each with that of its neighbour. There are
// none if the tiles do not touch, are not of the same size, or the neighbour is faulty.
func (s *fileSet) pairs(h *heightRecord, side int) (found [][2]float64) {
	other := s.measured(h.beside[side])
	if other == nil || other.isFaulty {
		return nil
	}

	const tolerance = 1.5 // pixels; posts at the edge are in both tiles
	a := s.files[h.file]
	b := s.files[other.file]
	step := sides()[side]
	gapX := math.Abs(b.x - a.x - float64(step[1])*a.w)
	gapY := math.Abs(b.y - a.y - float64(step[0])*a.h)
	isSameSize := math.Abs(a.w-b.w) < a.dx/2 && math.Abs(a.h-b.h) < a.dy/2
	if gapX > tolerance*a.dx || gapY > tolerance*a.dy || !isSameSize {
		return nil
	}

	for i, v := range h.edges[side] {
		w := other.edges[(side+2)%4][i]
		if v == v && w == w {
			found = append(found, [2]float64{float64(v), float64(w)})
		}
	}
	return found
}

// around returns the pairs of all sides, and how many sides have any.
func (s *fileSet) around(h *heightRecord) (all [][2]float64, n int) {
	for side := range h.edges {
		if found := s.pairs(h, side); len(found) > 0 {
			all = append(all, found...)
			n++
		}
	}
	return all, n
}

// findFlat says which height a file has all over. The file is water, and no finding, if a third of
// the neighbours' heights along its edges are the same, to a metre.
func (s *fileSet) findFlat(h *heightRecord) string {
	if h.Min != h.Max {
		return ""
	}

	near := 0
	all, _ := s.around(h)
	for _, p := range all {
		if math.Abs(p[0]-p[1]) <= 1 {
			near++
		}
	}
	if near > 0 && near*3 >= len(all) {
		return ""
	}
	return fmt.Sprintf("%g all over; of %d heights of its neighbours, %d are like that", h.Min, len(all), near)
}

// findFeet returns a text if the heights of a tile seem to be in feet, among neighbours in metres.
// It compares the heights along the edges with those of the neighbours. There are two signs: three
// quarters of all are 3.28 times as high, or all along one side, where a lot in feet begins.
//
// One side does not count if one of the files states feet, because then the unit may be wrong. Nor
// does it count if its heights differ from the neighbour's by the same step, to a hundredth: it may
// be a wall between two level grounds. Heights within 20 m of 0 are left out, because rounding
// changes their ratio too much.
func (s *fileSet) findFeet(h *heightRecord) string {
	const (
		ratio  = 3.2808
		lowest = 20
	)
	var like, all int
	var isLot bool
	for side := range h.edges {
		pairs := s.pairs(h, side)
		before := like
		for _, p := range pairs {
			if math.Abs(p[1]) >= lowest && math.Abs(p[0]/p[1]/ratio-1) < 0.03 {
				like++
			}
		}
		all += len(pairs)

		isWholeSide := like-before == edgeHeights
		if !isWholeSide {
			continue
		}

		beside := s.measured(h.beside[side]) // it has heights, so it is not nil
		isInMetres := h.metres == 1 && beside.metres == 1
		steps := offsets(pairs) // sorted
		variation := steps[len(steps)-1] - steps[0]
		isWall := variation <= math.Abs(steps[0])/100
		if isInMetres && !isWall {
			isLot = true
		}
	}

	areMost := like >= edgeHeights && like*4 >= all*3
	if !isLot && !areMost {
		return ""
	}
	return fmt.Sprintf("%d of %d heights along its edges are 3.28 times those of its neighbours: feet?", like, all)
}

// checkVoids finds files with at least 2 % of voids, and with five times the share that nine tenths
// of the files stay below. Voids at an edge are no finding if there is no neighbour, or one with
// more voids: the area ends there, or there is a coast.
func (s *fileSet) checkVoids() {
	share := func(h *heightRecord) float64 { return float64(h.Voids) / float64(h.Samples) }
	var shares []float64
	for _, h := range s.heights {
		if h.Voids < h.Samples {
			shares = append(shares, share(h))
		}
	}
	if len(shares) == 0 {
		return
	}
	slices.Sort(shares)
	usual := shares[len(shares)*9/10]

	isOpen := func(h *heightRecord) bool {
		for side, edge := range h.edges {
			hasVoid := slices.ContainsFunc(edge[:], func(v float32) bool { return v != v })
			other := s.measured(h.beside[side])
			isEnd := h.beside[side] == noFile || other != nil && share(other) > share(h)
			if hasVoid && isEnd {
				return true
			}
		}
		return false
	}
	for _, h := range s.heights {
		isUnusual := share(h) >= max(0.02, 5*usual)
		if isUnusual && !h.isFaulty && !isOpen(h) {
			const format = "%.3g %% of its samples are void; nine of ten files have at most %.3g %%"
			s.foundIn("voids", h.file, fmt.Sprintf(format, 100*share(h), 100*usual))
		}
	}
}

// spread returns the median distance of values from a value.
func spread(values []float64, from float64) float64 {
	var distances []float64
	for _, v := range values {
		distances = append(distances, math.Abs(v-from))
	}
	return median(distances)
}

// steepest returns the steepest slope along the edges of a tile and of its neighbours, for one
// pixel.
func (s *fileSet) steepest(h *heightRecord) (slope float64) {
	for _, file := range append(h.beside[:], h.file) {
		tile := s.measured(file)
		if tile == nil {
			continue
		}
		r := s.files[file]
		for side, edge := range tile.edges {
			pixels := [...]float64{r.w / r.dx, r.h / r.dy}[side%2] / edgeHeights
			for i := 1; i < len(edge); i++ {
				if v := math.Abs(float64(edge[i]-edge[i-1])) / pixels; v > slope { // not if one is void
					slope = v
				}
			}
		}
	}
	return slope
}

// offsets returns how far each first height lies above the second one, sorted.
func offsets(pairs [][2]float64) (all []float64) {
	for _, p := range pairs {
		all = append(all, p[0]-p[1])
	}
	slices.Sort(all)
	return all
}

// checkSeams finds tiles whose heights along their edges are unlike those of their neighbours:
// three quarters of them are higher, or lower, or far away. It also finds neighbours whose edges
// run in parallel, with a step. A cliff between two tiles is no such step: its height varies, or
// one of its sides is level.
func (s *fileSet) checkSeams() {
	var typical []float64
	for _, h := range s.heights {
		if all, n := s.around(h); n > 1 {
			typical = append(typical, spread(offsets(all), 0))
		}
	}
	usual := 0.0
	comparison := ""
	if len(typical) >= 8 { // among fewer, one wrong tile would be usual
		usual = median(typical)
		comparison = fmt.Sprintf(", where %.2g m is usual", usual)
	}

	// isLarge reports whether a step is more than so many times the usual one, and more than that
	// many times the steepest slope.
	isLarge := func(h *heightRecord, v, times float64) bool {
		return v >= h.step && v > times*usual && v > times*s.steepest(h)
	}

	for _, h := range s.heights {
		all, n := s.around(h)
		if h.isFaulty || n < 2 {
			continue
		}

		// Slopes make one side of a tile higher than its neighbour, and the other one lower.
		steps := offsets(all)
		quarter := len(steps) / 4
		level := max(steps[quarter], -steps[len(steps)-1-quarter])
		for i, v := range steps {
			steps[i] = math.Abs(v)
		}
		slices.Sort(steps)
		if isLarge(h, level, 2) || isLarge(h, steps[quarter], 5) {
			const format = "a step of %.3g m along the edges to its %d neighbours%s"
			s.foundIn("seam", h.file, fmt.Sprintf(format, median(steps), n, comparison))
			h.isFaulty = true
		}
	}

	for _, h := range s.heights {
		for side := range 2 {
			pairs := s.pairs(h, side)
			if len(pairs) < edgeHeights/2 || h.isFaulty {
				continue
			}

			var own, others []float64
			for _, p := range pairs {
				own = append(own, p[0])
				others = append(others, p[1])
			}
			steps := offsets(pairs)
			step := median(steps)
			relief := min(spread(own, median(own)), spread(others, median(others)))
			isParallel := 4*spread(steps, step) < relief
			if isParallel && isLarge(h, math.Abs(step), 3) {
				detail := fmt.Sprintf("a step of %.3g m all along the edge%s, to ", math.Abs(step), comparison)
				s.found("seam", flaw{h.file, h.beside[side], detail})
				h.isFaulty = true
			}
		}
	}
}
