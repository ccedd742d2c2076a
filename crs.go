package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// crsDefinition is how to get from a CRS to degrees, and how far, without a datum shift, those may be from WGS 84.
type crsDefinition struct {
	projection projection
	accuracyM  float64 // metres; 0 where nothing can be promised
}

// Accuracy of coordinates that are taken for WGS 84 as they are, in metres.
const (
	accuracyWGS84  = 0.1 // the same datum: what rounding and the formulas may add
	accuracyETRS89 = 1   // EPSG transformation 1149, ETRS89 to WGS 84 (1), a null shift: accuracy 1 m
	accuracyNAD83  = 4   // EPSG transformation 1188, NAD83 to WGS 84 (1), a null shift, North America: accuracy 4 m
)

// crsByCode gives the CRS of an EPSG code: geographic ones, UTM on WGS 84, ETRS89 and NAD83, Web Mercator.
func crsByCode(code int) (crsDefinition, bool) {
	switch {
	case code > 32600 && code <= 32660:
		return crsDefinition{utmProjection(wgs84(), code-32600, false), accuracyWGS84}, true
	case code > 32700 && code <= 32760:
		return crsDefinition{utmProjection(wgs84(), code-32700, true), accuracyWGS84}, true
	case code >= 25828 && code <= 25838:
		return crsDefinition{utmProjection(grs80(), code-25800, false), accuracyETRS89}, true
	case code >= 26901 && code <= 26923:
		return crsDefinition{utmProjection(grs80(), code-26900, false), accuracyNAD83}, true
	case code == 3857: // WGS 84 / Pseudo-Mercator
		p, _ := newProjection(1024, wgs84(), map[int]float64{8802: 0, 8806: 0, 8807: 0})
		return crsDefinition{p, accuracyWGS84}, true
	case isGeographicCode(code):
		return crsDefinition{geographicProjection(primeMeridianOf(code)), geographicAccuracy(code)}, true
	}
	return crsDefinition{}, false
}

// geographicAccuracy gives the accuracy of a geographic CRS taken for WGS 84; 0 where none can be promised.
func geographicAccuracy(code int) float64 {
	switch code {
	case 4326, 4979: // WGS 84
		return accuracyWGS84
	case 4258, 4937: // ETRS89
		return accuracyETRS89
	case 4269: // NAD83
		return accuracyNAD83
	}
	return 0
}

// gradDegrees is a grad in degrees: 400 to the circle.
const gradDegrees = 0.9

// primeMeridianOf gives the prime meridian of a geographic CRS, in degrees east of Greenwich, and its unit in degrees.
func primeMeridianOf(code int) (longitude, unit float64) {
	for _, meridian := range [...]struct {
		longitude, unit float64
		codes           []int
	}{
		{7 + 26.0/60 + 22.5/3600, 1, []int{4801}},                                               // Bern
		{-(74 + 4.0/60 + 51.3/3600), 1, []int{4802}},                                            // Bogota
		{-(9 + 7.0/60 + 54.862/3600), 1, []int{4803, 4904}},                                     // Lisbon
		{106 + 48.0/60 + 27.79/3600, 1, []int{4804, 4808, 4813, 4820}},                          // Jakarta
		{-(17 + 40.0/60), 1, []int{4805, 4818, 5229, 8042, 8043}},                               // Ferro
		{12 + 27.0/60 + 8.4/3600, 1, []int{4806}},                                               // Rome
		{4 + 22.0/60 + 4.71/3600, 1, []int{4809}},                                               // Brussels
		{18 + 3.0/60 + 29.8/3600, 1, []int{4814}},                                               // Stockholm
		{23 + 42.0/60 + 58.815/3600, 1, []int{4815}},                                            // Athens
		{10 + 43.0/60 + 22.5/3600, 1, []int{4817}},                                              // Oslo
		{-(3 + 41.0/60 + 14.55/3600), 1, []int{4903}},                                           // Madrid
		{2.5969213 * gradDegrees, gradDegrees, []int{4807, 4810, 4811, 4816, 4819, 4821, 4902}}, // Paris, in grads
		{2 + 20.0/60 + 13.95/3600, gradDegrees, []int{4901}},                                    // Paris RGS, in grads
	} {
		if slices.Contains(meridian.codes, code) {
			return meridian.longitude, meridian.unit
		}
	}
	return 0, 1
}

// isGeographicCode says whether an EPSG code is that of a geographic CRS, 2D or 3D: the EPSG dataset, version
// 10.076. A run takes in codes that EPSG has not given out; of one with /2 it is every other code.
func isGeographicCode(code int) bool {
	const runs = `
		3819-3821 3823-3824 3888-3889 3906 4001-4025 4027-4036 4040-4047 4052-4055 4074-4075 4080-4081 4120-4216
		4218-4327 4329 4339-4383/2 4386 4388 4463 4466 4469-4470 4472 4475 4480 4482-4483 4490 4555 4557-4558
		4600-4646 4657-4765 4801-4811 4813-4821 4823-4824 4883-4895/2 4898 4900-4904 4907 4909 4921-4999/2 5012-5013
		5132 5228-5233 5245-5246 5251-5252 5263-5264 5323-5324 5340 5342 5353-5354 5359-5360 5364-5365 5370-5373
		5380-5381 5392-5393 5451 5464 5467 5488-5489 5524-5527 5545-5546 5560-5561 5592-5593 5681 5830 5885-5886
		6134-6135 6207 6310-6311 6318-6319 6321-6322 6324-6325 6364-6365 6667-6668 6705-6706 6782-6783 6881-6883 6892
		6894 6979-6980 6982-6983 6986-6987 6989-6990 7034-7042 7072-7073 7084-7088 7133 7135-7136 7138-7139 7372-7373
		7657-7665/2 7678 7680 7682-7683 7685-7686 7797-7798 7816 7843-7844 7880-7881 7885-7886 7900-7912 7915-7931/2
		8042-8043 8085-8086 8231-8232 8235-8237 8239-8240 8244-8246 8248-8249 8251-8252 8254-8255 8351 8399 8403
		8426-8428 8430-8431 8449 8542 8544-8545 8684-8685 8694 8698-8699 8817-8818 8860 8888 8899-8902 8906-8907
		8916-8946/2 8948-8949 8972-9000 9002-9003 9005-9006 9008-9009 9011-9014 9016-9019 9053-9069 9071-9072
		9074-9075 9139-9140 9147-9148 9152-9153 9183-9184 9248 9251 9253 9267 9293-9294 9299 9308-9309 9332-9333 9364
		9372 9379-9384 9403 9453 9469-9470 9474-9475 9546-9547 9695-9696 9701-9702 9739 9754-9758 9763 9776-9779
		9781-9784 9866 9871 9893 9939 9964 9969 9974 9989-9990 20033 20040-20041`
	if code == 0 || geographicAccuracy(code) > 0 { // the usual ones
		return code != 0
	}
	for run := range strings.FieldsSeq(runs) {
		run, everyOther := strings.CutSuffix(run, "/2")
		first, last, _ := strings.Cut(run, "-")
		from, _ := strconv.Atoi(first)
		to, _ := strconv.Atoi(cmp.Or(last, first))
		if code >= from && code <= to && !(everyOther && (code-from)%2 != 0) {
			return true
		}
	}
	return false
}
