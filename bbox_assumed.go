package main

import "strings"

// lacksCRS is the reason of a raster whose file names no CRS.
const lacksCRS = "the file does not name its CRS; set one for the dataset, " +
	"or assign one to the file, for example with gdal_edit.py -a_srs"

// The ends of extent.Source if assume has set a CRS.
const (
	sourceOfCRS         = "; CRS set for the dataset"
	sourceOfVerticalCRS = "; vertical CRS set for the dataset"
)

// assume sets the CRS and the vertical CRS of a raster whose file names none. They replace those
// that it set before. Each is a code that isCodeOf accepts, or "" for none. Then the extent is as
// if the file named them. name is the file's name without directory.
func (m *extent) assume(crs, verticalCRS, name string, l *lastCRS) {
	m.forgetAssumed()
	if m.NativeBBox == nil {
		return
	}

	if m.LacksCRS && crs != "" {
		m.OwnWarnings = len(m.Warnings)
		m.SetCRS = crs
		m.Source = new(*m.Source + sourceOfCRS)

		code, _ := epsgCode(crs)
		err := m.locate(crsParameters{present: true, code: code}, l)
		if err == nil {
			m.checkName(name)
		}

		// A raster with damaged data stays corrupt.
		switch {
		case m.Status != fileStatusNoBBox:
			m.withdrawPlace()
		case err == nil:
			m.Status = fileStatusOK
			m.Reason = nil
		default:
			m.Reason = new(reasonOf(err))
		}
	}

	// Heights above the ellipsoid belong to the horizontal CRS.
	isEllipsoidal := m.CRS != nil && *m.CRS == *epsg(epsgWGS84Height)
	if m.VerticalCRS == nil && !isEllipsoidal && verticalCRS != "" {
		m.VerticalCRS = &verticalCRS
		m.SetVerticalCRS = verticalCRS
		m.Source = new(*m.Source + sourceOfVerticalCRS)
	}
}

// forgetAssumed undoes assume.
func (m *extent) forgetAssumed() {
	if m.SetVerticalCRS != "" {
		m.SetVerticalCRS = ""
		m.VerticalCRS = nil
		m.Source = new(strings.TrimSuffix(*m.Source, sourceOfVerticalCRS))
	}

	if m.SetCRS == "" {
		return
	}

	m.SetCRS = ""
	m.CRS = nil
	m.CRSDefinition = nil
	m.BBox = nil
	m.BBoxAccuracyM = nil
	m.ResolutionM = nil
	m.Source = new(strings.TrimSuffix(*m.Source, sourceOfCRS))

	n := min(m.OwnWarnings, len(m.Warnings))
	m.OwnWarnings = 0
	m.Warnings = m.Warnings[:n:n]
	if m.Status == fileStatusOK || m.Status == fileStatusNoBBox {
		m.Status = fileStatusNoBBox
		m.Reason = new(lacksCRS)
	}
}

// isCodeOf reports whether a text is the code of a known vertical CRS or, without vertical, of a
// CRS without heights whose coordinates are converted to degrees. It accepts "", for none.
func isCodeOf(text string, vertical bool) bool {
	code, _ := epsgCode(text)
	isPlain := text == *epsg(code)
	isVertical := findRecord(recordCRS, code).text(1) == "V"
	crs, err := crsByCode(code)

	isHorizontal := err == nil && crs.vertical == 0
	isKind := isHorizontal && !vertical || isVertical && vertical
	return text == "" || isPlain && isKind
}
