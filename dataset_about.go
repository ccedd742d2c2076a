package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io/fs"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// datasetAbout is the description of a dataset by its team. Every field may be empty.
type datasetAbout struct {
	Title              string            `json:"title"`
	License            string            `json:"license"` // an SPDX expression or a URL
	Attribution        string            `json:"attribution"`
	Providers          []datasetProvider `json:"providers"`
	SurveyedFrom       string            `json:"surveyed_from"` // the first day, as in 2026-01-31
	SurveyedUntil      string            `json:"surveyed_until"`
	VerticalRMSE       *float64          `json:"vertical_rmse_m"` // root mean square error of heights, metres
	VerticalRMSESource string            `json:"vertical_rmse_source"`
	Keywords           []string          `json:"keywords"`
	Link               string            `json:"link"` // a page about the dataset

	setCRSs
}

// setCRSs is the CRSs that are set for files that name none: in general, and in folders. Each is an
// EPSG code as in extent.CRS, or empty.
type setCRSs struct {
	DefaultCRS         string      `json:"default_crs"`
	DefaultVerticalCRS string      `json:"default_vertical_crs"`
	FolderCRS          []folderCRS `json:"folder_crs"` // in the order of paths
}

// folderCRS is the CRSs of a folder. An empty one is that of the folder above.
type folderCRS struct {
	Folder      string `json:"folder"` // its path below the directory, as files have it
	CRS         string `json:"crs"`
	VerticalCRS string `json:"vertical_crs"`
}

// datasetProvider is an organization that had a part in a dataset (STAC 1.0.0, provider object).
type datasetProvider struct {
	Name  string   `json:"name"`
	Roles []string `json:"roles"`
	URL   string   `json:"url,omitzero"`
}

// spdxExpression matches what has the shape of an SPDX license expression (SPDX 2.3, annex D).
var spdxExpression = regexp.MustCompile(`^[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*$`)

// changedBy returns the description with the fields of a JSON object. Other fields stay as they
// are. The error is a 422.
func (a datasetAbout) changedBy(fields json.RawMessage) (datasetAbout, error) {
	// Decode writes through what it finds, so changed must not share anything with a.
	changed := a
	changed.Providers = nil
	changed.Keywords = nil
	changed.FolderCRS = nil
	if a.VerticalRMSE != nil {
		changed.VerticalRMSE = new(*a.VerticalRMSE)
	}

	dec := json.NewDecoder(bytes.NewReader(fields))
	dec.DisallowUnknownFields()
	var v invalid
	if err := dec.Decode(&changed); err != nil {
		v.check(false, "about", fieldMalformed, decodingProblem(err).Error())
		return a, v.err()
	}

	// Lists that the object does not have.
	if changed.Providers == nil {
		changed.Providers = a.Providers
	}
	if changed.Keywords == nil {
		changed.Keywords = a.Keywords
	}
	if changed.FolderCRS == nil {
		changed.FolderCRS = slices.Clone(a.FolderCRS)
	}

	changed.check(&v)
	changed.setCRSs.check(&v)
	return changed, v.err()
}

// check notes what is wrong with the fields.
func (a datasetAbout) check(v *invalid) {
	lines := []struct{ name, text string }{
		{"title", a.Title},
		{"attribution", a.Attribution},
		{"vertical_rmse_source", a.VerticalRMSESource},
	}
	for _, line := range lines {
		v.check(isLine(line.text, 0, 200), "about."+line.name, fieldMalformed,
			"must be one line of at most 200 characters")
	}

	isSPDX := len(a.License) <= 200 && spdxExpression.MatchString(a.License)
	v.check(isSPDX || isURLOrEmpty(a.License), "about.license", fieldMalformed,
		"must be an SPDX identifier such as CC-BY-4.0, or a URL")
	v.check(isURLOrEmpty(a.Link), "about.link", fieldMalformed, "must be a URL that begins with https:// or http://")

	from, fromErr := parseDay(a.SurveyedFrom)
	until, untilErr := parseDay(a.SurveyedUntil)
	v.check(fromErr == nil, "about.surveyed_from", fieldMalformed, "must be a day such as 2026-01-31")
	v.check(untilErr == nil, "about.surveyed_until", fieldMalformed, "must be a day such as 2026-01-31")
	isOrdered := from.IsZero() || until.IsZero() || !until.Before(from)
	v.check(isOrdered, "about.surveyed_until", fieldMalformed, "must not be before the first day")

	isRMSE := a.VerticalRMSE == nil || *a.VerticalRMSE > 0 && !math.IsInf(*a.VerticalRMSE, 0)
	v.check(isRMSE, "about.vertical_rmse_m", fieldMalformed, "must be a number of metres above 0")

	areKeywords := len(a.Keywords) <= 50
	for _, keyword := range a.Keywords {
		areKeywords = areKeywords && isLine(keyword, 1, 50) && !strings.Contains(keyword, ",")
	}
	v.check(areKeywords, "about.keywords", fieldMalformed,
		"must be at most 50 lines of 1 to 50 characters without commas")

	roles := []string{"licensor", "producer", "processor", "host"} // STAC 1.0.0, provider object
	areProviders := len(a.Providers) <= 20
	for _, p := range a.Providers {
		isUnknown := func(role string) bool { return !slices.Contains(roles, role) }
		hasRoles := p.Roles != nil && len(p.Roles) <= 4 && !slices.ContainsFunc(p.Roles, isUnknown)
		isValid := isLine(p.Name, 1, 200) && hasRoles && isURLOrEmpty(p.URL)
		areProviders = areProviders && isValid
	}
	v.check(areProviders, "about.providers", fieldMalformed,
		"must be at most 20 providers with name, url and the roles licensor, producer, processor or host")
}

// check notes what is wrong with the CRSs, and brings those of folders into their order.
func (c *setCRSs) check(v *invalid) {
	const horizontal = "must be the code of a known CRS without heights, such as EPSG:25832"
	const vertical = "must be the code of a known vertical CRS, such as EPSG:5720"
	v.check(isCodeOf(c.DefaultCRS, false), "about.default_crs", fieldUnknown, horizontal)
	v.check(isCodeOf(c.DefaultVerticalCRS, true), "about.default_vertical_crs", fieldUnknown, vertical)

	isEmpty := func(f folderCRS) bool { return f.CRS+f.VerticalCRS == "" }
	c.FolderCRS = slices.DeleteFunc(c.FolderCRS, isEmpty)
	v.check(len(c.FolderCRS) <= 100, "about.folder_crs", fieldMalformed, "must be at most 100 folders")

	for i, f := range c.FolderCRS {
		f.Folder = strings.Trim(f.Folder, "/")
		c.FolderCRS[i] = f

		isPath := fs.ValidPath(f.Folder) && f.Folder != "." && isLine(f.Folder, 1, maxPath)
		v.check(isPath, "about.folder_crs", fieldMalformed, "folder must be a path below the directory")
		v.check(isCodeOf(f.CRS, false), "about.folder_crs", fieldUnknown, "crs "+horizontal)
		v.check(isCodeOf(f.VerticalCRS, true), "about.folder_crs", fieldUnknown, "vertical_crs "+vertical)
	}

	byFolder := func(f, g folderCRS) int { return strings.Compare(f.Folder, g.Folder) }
	slices.SortStableFunc(c.FolderCRS, byFolder)
}

// of returns the CRSs that are set for a file with that path, if it names none.
func (c setCRSs) of(path string) (crs, verticalCRS string) {
	crs = c.DefaultCRS
	verticalCRS = c.DefaultVerticalCRS

	// A folder comes before the folders in it.
	for _, f := range c.FolderCRS {
		if strings.HasPrefix(path, f.Folder+"/") {
			crs = cmp.Or(f.CRS, crs)
			verticalCRS = cmp.Or(f.VerticalCRS, verticalCRS)
		}
	}
	return crs, verticalCRS
}

// isURL reports whether text is an absolute URL of the web.
func isURL(text string) bool {
	u, err := url.Parse(text)
	isWeb := err == nil && (u.Scheme == "https" || u.Scheme == "http")
	return isWeb && u.Host != "" && isLine(text, 1, 2000)
}

// isURLOrEmpty reports whether text is empty or as isURL demands.
func isURLOrEmpty(text string) bool { return text == "" || isURL(text) }

// parseDay returns the beginning of a day in UTC; "" is the zero time.
func parseDay(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.DateOnly, text)
}

// survey returns the first and the last moment of the survey, for STAC; nil: unknown.
func (a datasetAbout) survey() (first, last *time.Time) {
	from, _ := parseDay(a.SurveyedFrom) // checked when it was stored
	until, _ := parseDay(a.SurveyedUntil)
	if !from.IsZero() {
		first = &from
	}
	if !until.IsZero() {
		end := until.AddDate(0, 0, 1).Add(-time.Second)
		last = &end
	}
	return first, last
}

// addTo adds the description to a STAC collection.
func (a datasetAbout) addTo(collection object, links []object) []object {
	if a.Title != "" {
		collection["title"] = a.Title
	}
	if len(a.Keywords) > 0 {
		collection["keywords"] = a.Keywords
	}
	if len(a.Providers) > 0 {
		collection["providers"] = a.Providers
	}

	collection["license"] = a.stacLicense()
	if isURL(a.License) {
		links = append(links, stacLink("license", a.License, "text/html"))
	}
	if a.Link != "" {
		links = append(links, stacLink("about", a.Link, "text/html"))
	}
	return links
}

// stacLicense returns the license as STAC 1.0.0 has it: one SPDX identifier; "various" for an
// expression of several; or "proprietary", if it is unknown or a link says it.
func (a datasetAbout) stacLicense() string {
	if a.License == "" || isURL(a.License) {
		return "proprietary"
	}
	if strings.Contains(a.License, " ") {
		return "various"
	}
	return a.License
}
