# make lists the targets, with the text beside each.

GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# With this tag, pgx leaves out the PostgreSQL types of Go values in statements that are not described first, such as
# QueryExecModeExec, which Cairn does not use: 1.4 MB. Without the tag the program works the same.
TAGS = nopgxregisterdefaulttypes

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

# Go writes the commit into the program, where git knows one.
VCS = $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)
PROGRAM = cairn

build: go ## build ./cairn
	CGO_ENABLED=0 $(GO) build -tags $(TAGS) -trimpath -buildvcs=$(VCS) -ldflags='-s -w' -o $(PROGRAM) .

run: go postgres build ## start Cairn on the sample files, with its data in ./var
	@tools/run

# More tests at a time than cores, because many wait for a second to pass; on slow machines no more than four. `make lint` vets, so go test need not.
test: go postgres curl jq ## run the test suite, as any user, on a PostgreSQL that it starts itself, in a few minutes
	CGO_ENABLED=0 $(GO) test -vet=off -tags $(TAGS) -shuffle=on -parallel 4 -timeout 20m .

# Nothing runs side by side in the tests that only read the source, in those that only compute, and in those that send
# hundreds of requests one after another; the detector would take minutes for these. TestSlowReaders measures memory, of
# which the detector takes more for each goroutine than the bound allows.
test-race: go postgres curl jq compiler ## the same with Go's race detector, which takes several times as long
	$(GO) test -race -vet=off -tags $(TAGS) -shuffle=on -skip '^Test(Layers|PureLayerCompilesAlone|Declarations|Lengths|Size|SlowReaders|TrueTerrain|FractalTerrain|(Many)?WrongHeights|Steps|StepAmongFewTiles|PolarBoxes|ProjectionsRoundTrip|Injection|SortedPages|SearchGeometries|RefusedLinks|FileFilters)$$' -timeout 30m .

test-peers: postgres ## run, as root, the tests that need FUSE, huge files or other programs, which it installs: nginx, Caddy, Chromium, PgBouncer, PROJ, GDAL, QGIS, OWSLib, rasterio, terra, librsvg, ZBar, oathtool, promtool, systemd-analyze, npm, lintian, QEMU
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || tools/install nginx-light
	@command -v caddy >/dev/null || tools/install caddy
	@command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || tools/install pgbouncer
	@command -v cs2cs >/dev/null && command -v python3 >/dev/null || tools/install proj-bin proj-data python3
	@command -v ogrinfo >/dev/null || tools/install gdal-bin
	@/usr/bin/python3 -c 'import osgeo_utils, owslib, pyproj, qgis.core, rasterio' 2>/dev/null || tools/install python3-gdal python3-owslib python3-pyproj python3-qgis python3-rasterio
	@[ -d /usr/lib/R/site-library/terra ] || tools/install r-cran-terra
	@command -v rsvg-convert >/dev/null || tools/install librsvg2-bin
	@command -v zbarimg >/dev/null || tools/install zbar-tools
	@command -v oathtool >/dev/null || tools/install oathtool
	@command -v promtool >/dev/null || tools/install prometheus
	@command -v lintian >/dev/null || tools/install lintian
	@command -v qemu-aarch64-static >/dev/null || tools/install qemu-user-static
	@command -v chromedriver >/dev/null || tools/install chromium chromium-driver
	@command -v npx >/dev/null || tools/install npm
	@command -v systemd-analyze >/dev/null || tools/install systemd
	CGO_ENABLED=0 $(GO) test -tags peers,$(TAGS) -run '^TestPeer' -count 1 -timeout 35m .

test-scale: build postgres curl ## kill the primary of a Patroni cluster five times under load, as root: see docs/scale.md (DIRECT=1 leaves PgBouncer out); it installs nginx, PgBouncer, HAProxy, etcd and Patroni
	@PATH=$$PATH:/usr/sbin; for program in nginx:nginx-light pgbouncer:pgbouncer haproxy:haproxy etcd:etcd-server patroni:patroni openssl:openssl; do \
		command -v $${program%:*} >/dev/null || tools/install $${program#*:} || exit 1; done
	deploy/test-scale $(PROGRAM) $(GO) $(TAGS)

test-corpus: postgres ## compare the elevation files in CAIRN_CORPUS/files with what GDAL says about them in CAIRN_CORPUS/oracle.jsonl
	$(GO) test -v -tags peers,$(TAGS) -run '^TestCorpus$$' -count 1 .

test-stac-schemas: postgres ## check the STAC tree with stac-node-validator, against the schemas in CAIRN_STAC_SCHEMAS (a mirror of schemas.stacspec.org, stac-extensions.github.io, geojson.org and proj.org)
	@command -v npx >/dev/null || tools/install npm
	@/usr/bin/python3 -c 'import osgeo_utils' 2>/dev/null || tools/install python3-gdal
	$(GO) test -v -tags peers -run '^TestSTACSchemas$$' -count 1 .

lint: ## gofmt, go vet, staticcheck, shellcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'not gofmt-ed'; exit 1; }
	$(GO) vet -tags peers,bench,scale .
	$(GO) run $(STATICCHECK) -tags peers,bench,scale .
	@command -v shellcheck >/dev/null || tools/install shellcheck
	shellcheck --external-sources $$(grep -slE '^#!/(bin/|usr/bin/env )(ba)?sh' .ci/* tools/* deploy/* deploy/debian/*)

bench-analysis: postgres ## measure the analysis of CAIRN_BENCH_FILES (1,000,000) files; needs 10 GB and 1.1 million inodes in TMPDIR
	@$(GO) test -v -tags bench,$(TAGS) -run '^TestBenchAnalysis$$' -count 1 -timeout 60m . >testdata/bench-analysis.new || { cat testdata/bench-analysis.new; exit 1; }
	@grep -v -e '^=== ' -e '--- PASS' -e '^PASS' -e '^ok' testdata/bench-analysis.new | tee testdata/bench-analysis.txt; rm testdata/bench-analysis.new

soak: postgres ## run for long what the test suite runs for seconds
	CAIRN_SOAK=1 $(GO) test -tags $(TAGS) -v -run '^Test(NobodyGains|MessageModel|Killed|FolderModel|Database|Failover|Restart|ManyLogins|SlowClients|IdleClients|HugeRequests|MixedLoad|HostileRequests|HostileForms|STACPaging|LargeVRT|LargeDirectory|OverlongNames|BoundaryRandom|AdministratorsAtOnce|ThrottledNetwork|TOTPGuesses|FileQueries|ManyWrongHeights|FractalTerrain|HiddenDatasets$$)' -count 1 -timeout 90m .

bench: postgres ## measure against floors taken in the same run, and write BENCH.md
	@tools/bench $(GO) $(TAGS)

ARCHITECTURE = $(shell dpkg --print-architecture)
VERSION = $(shell sed -n 's/^const version = "\(.*\)"$$/\1/p' config.go)
DEB = cairn_$(VERSION)_$(ARCHITECTURE).deb

deb: build ## build the Debian package for this machine, cairn_VERSION_ARCHITECTURE.deb
	deploy/build-deb $(ARCHITECTURE) cairn .

release: ## build all that is published of the commit that is checked out, into dist/: programs, Debian packages and archives for amd64 and arm64, SBOMs, checksums
	tools/release

image: build ## build the container image localhost/cairn from Containerfile, with podman
	@command -v podman >/dev/null || tools/install podman
	podman build --tag cairn .

test-package: deb bare-debian ## try the image, and the package on a bare Debian that is booted for it (needs root)
	@command -v podman >/dev/null && command -v runc >/dev/null || tools/install podman runc
	deploy/test-image
	deploy/test-package $(DEB)

test-fresh: deb bare-debian ## try a clone, and after it the package, on a bare Debian with Go (needs root)
	deploy/test-fresh $(DEB)

fuzz: ## fuzz each parser for FUZZTIME (5m)
	@for target in $$($(GO) test -list '^Fuzz' . | grep ^Fuzz); do \
		echo "$$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $${FUZZTIME:-5m} . || exit 1; done

go: # fails with a hint if Go is missing or too old
	@command -v $(GO) >/dev/null || { echo 'Cairn needs Go 1.26 or later, and there is no $(GO): see https://go.dev/dl/' >&2; exit 1; }
	@minor=$$($(GO) version | sed -n 's/.*go1\.\([0-9]*\).*/\1/p'); [ "$${minor:-0}" -ge 26 ] || \
		{ echo "Cairn needs Go 1.26 or later, and this is $$($(GO) version): see https://go.dev/dl/" >&2; exit 1; }

postgres: # PostgreSQL's server programs, where they are missing (Debian)
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/install postgresql

bare-debian: # what makes and boots a bare Debian, where it is missing (Debian)
	@command -v debootstrap >/dev/null || tools/install debootstrap
	@command -v systemd-nspawn >/dev/null || tools/install systemd-container

curl: # curl, for the examples in the documents, where it is missing (Debian)
	@command -v curl >/dev/null || tools/install curl

jq: # jq, for the same
	@command -v jq >/dev/null || tools/install jq

compiler: # a C compiler for the race detector, where it is missing (Debian)
	@command -v gcc >/dev/null || tools/install gcc libc6-dev

.PHONY: help build run test test-race test-peers test-scale test-corpus test-stac-schemas lint bench bench-analysis soak deb release image test-package test-fresh fuzz go postgres bare-debian curl jq compiler
