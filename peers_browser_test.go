//go:build peers

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// axeVersion is the version of axe-core, of npm, that looks for what keeps people out of a page.
const axeVersion = "4.10.3"

// chromium is Debian's browser, driven by the WebDriver protocol (W3C).
type chromium struct {
	t       *testing.T
	session string // the address of the session
	site    string // of the pages
}

// startChromium starts chromedriver and a browser, with or without JavaScript.
func startChromium(t *testing.T, site string, withScript bool) *chromium {
	t.Helper()
	driver := exec.Command("chromedriver", "--port=0")
	driver.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := driver.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-driver.Process.Pid, syscall.SIGKILL) // with the browser's own processes
		driver.Wait()
	})
	lines, port := bufio.NewScanner(stdout), ""
	for port == "" && lines.Scan() {
		if found := regexp.MustCompile(`successfully on port (\d+)`).FindStringSubmatch(lines.Text()); found != nil {
			port = found[1]
		}
	}
	go io.Copy(io.Discard, stdout)
	options := map[string]any{"binary": "/usr/bin/chromium", "args": []string{"--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + t.TempDir()}}
	if !withScript {
		options["prefs"] = map[string]any{"profile.managed_default_content_settings.javascript": 2}
	}
	c := &chromium{t: t, session: "http://127.0.0.1:" + port, site: site}
	started := c.call("POST", "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{"goog:chromeOptions": options}}})
	c.session += "/session/" + started.(map[string]any)["sessionId"].(string)
	t.Cleanup(func() { c.call("DELETE", "", nil) })
	c.call("POST", "/timeouts", map[string]any{"implicit": 20000, "script": 60000})
	return c
}

// call sends a command and returns its value.
func (c *chromium) call(method, command string, body any) any {
	c.t.Helper()
	var reader io.Reader
	if method == "POST" {
		if body == nil {
			body = map[string]any{}
		}
		encoded, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(encoded)
	}
	r, err := http.NewRequest(method, c.session+command, reader)
	if err != nil {
		c.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct{ Value any }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != 200 {
		c.t.Fatalf("%s %v: %v %.2000v", command, body, err, answer.Value)
	}
	return answer.Value
}

// open goes to a page: a path of the site, or an address.
func (c *chromium) open(address string) {
	c.t.Helper()
	if strings.HasPrefix(address, "/") {
		address = c.site + address
	}
	c.call("POST", "/url", map[string]any{"url": address})
}

// find returns the command path of the first element that an XPath selects, and waits for it.
func (c *chromium) find(xpath string) string {
	c.t.Helper()
	element := c.call("POST", "/element", map[string]any{"using": "xpath", "value": xpath}).(map[string]any)
	return "/element/" + element["element-6066-11e4-a52e-4f735466cecf"].(string)
}

// click clicks the first element that an XPath selects.
func (c *chromium) click(xpath string) {
	c.t.Helper()
	c.call("POST", c.find(xpath)+"/click", nil)
}

// press clicks the button with that text.
func (c *chromium) press(text string) {
	c.t.Helper()
	c.click(fmt.Sprintf("//button[normalize-space()=%q]", text))
}

// follow clicks the link with that text.
func (c *chromium) follow(text string) {
	c.t.Helper()
	c.click(fmt.Sprintf("//a[normalize-space()=%q]", text))
}

// fill types text into the inputs with these names.
func (c *chromium) fill(pairs ...string) {
	c.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		element := c.find(fmt.Sprintf("//*[@name=%q and not(@type='hidden')]", pairs[i]))
		c.call("POST", element+"/clear", nil)
		c.call("POST", element+"/value", map[string]any{"text": pairs[i+1]})
	}
}

// sees waits for a text on the page.
func (c *chromium) sees(text string) {
	c.t.Helper()
	c.find(fmt.Sprintf("//main[contains(normalize-space(.), %q)]", text))
}

// run runs a script, which calls its last argument with the result.
func (c *chromium) run(script string) any {
	c.t.Helper()
	return c.call("POST", "/execute/async", map[string]any{"script": script, "args": []any{}})
}

// devtools sends a command of Chromium's own protocol.
func (c *chromium) devtools(command string, params map[string]any) map[string]any {
	c.t.Helper()
	value, _ := c.call("POST", "/goog/cdp/execute", map[string]any{"cmd": command, "params": params}).(map[string]any)
	return value
}

// look sets the width of the window and whether the reader prefers dark colours.
func (c *chromium) look(width int, dark bool) {
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	c.devtools("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}})
	c.devtools("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
}

// signIn signs in on the login page, where the browser is already.
func (c *chromium) signIn(name, password string) {
	c.t.Helper()
	c.fill("username", name, "password", password)
	c.press("Sign in")
}

// startWithSamples starts a service with some elevation files, and returns it with an administrator.
func startWithSamples(t *testing.T) (*testServer, client) {
	t.Helper()
	ts := startServer(t, nil)
	dir := filepath.Join(ts.datasets, "alps")
	os.Mkdir(dir, 0o755)
	for lon := range 8 {
		for lat := range 6 {
			if lon == 3 && lat == 2 { // a hole
				continue
			}
			name := fmt.Sprintf("tile_%d_%d.tif", lon, lat)
			if err := os.WriteFile(filepath.Join(dir, name), geographicTIFF(7+float64(lon), 46+0.75*float64(lat)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	os.WriteFile(filepath.Join(dir, "broken.tif"), []byte("II*\x00"), 0o644)
	root := ts.signIn("root", "all")
	root.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "Maintenance on Sunday", "body": "The service stops at 10:00 for an hour.", "severity": "warning", "include_new_users": true})
	return ts, root
}

// TestPeerBrowserTour does the whole tour in a browser, with JavaScript and without.
func TestPeerBrowserTour(t *testing.T) {
	for name, withScript := range map[string]bool{"with JavaScript": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			ts, root := startWithSamples(t)
			c := startChromium(t, ts.url, withScript)
			// An administrator invites somebody, who sets a password by the link.
			c.open("/users")
			c.signIn("root", testPassword)
			c.find("//h1[.='Users']")
			c.fill("username", "ada")
			c.click("//input[@name='roles' and @value='admin']")
			c.press("Create the account")
			link := c.call("GET", c.find("//code[@class='secret']")+"/text", nil).(string)
			c.press("Sign out")
			c.sees("You have signed out")
			c.open(link)
			if _, token, _ := strings.Cut(link, "#"); !withScript { // the person copies it into the form
				c.fill("token", token)
			}
			c.fill("new_password", "short")
			c.press("Set the password")
			c.sees("must have at least 8 characters")
			c.fill("new_password", "a long enough one")
			c.press("Set the password")
			c.sees("Sign in with it")
			c.signIn("ada", "a long enough one")
			c.sees("Maintenance on Sunday")
			c.open("/account/totp")
			c.fill("current_password", "a long enough one")
			c.press("Set up")
			secret := c.call("GET", c.find("//code[@class='secret']")+"/text", nil).(string)
			code, err := exec.Command("oathtool", "--totp", "--base32", secret).Output()
			if err != nil {
				t.Fatal(err)
			}
			c.fill("otp", strings.TrimSpace(string(code)))
			c.press("Confirm")
			recovery := c.call("GET", c.find("//li/code[@class='secret']")+"/text", nil).(string)
			c.open("/")
			c.follow("To the inbox")
			c.press("Mark as read")
			c.sees("Marked as read")
			if n := ts.queryInt(`SELECT count(*) FROM system_message_reads`); n != 1 {
				t.Errorf("%d messages read", n)
			}
			c.follow("Datasets")
			c.find("//h1[.='Datasets']")
			c.fill("name", "alps", "path", "nowhere", "description", "Tiles <of> the Alps")
			c.press("Register")
			c.sees("there is no such directory")
			c.fill("path", "alps")
			c.press("Register")
			c.sees("The dataset is registered. Start an analysis to read its files.")
			c.press("Start an analysis")
			c.find("//h1[.='Analysis of alps']")
			run := root.must(200, "GET", "/api/v1/datasets/1/analyses", nil).items()[0]
			root.finished(fmt.Sprintf("/api/v1/datasets/1/analyses/%.0f", run["id"]))
			if !withScript {
				c.call("POST", "/refresh", nil)
			}
			c.find("//span[@class='tag succeeded']") // with JavaScript the page finds out by itself
			c.find("//h2[.='Changes']/..//li[starts-with(., 'added')]")
			if strings.Contains(c.call("GET", "/source", nil).(string), "has been queued") {
				t.Error("an analysis that has finished is said to be queued")
			}
			c.follow("alps")
			before := c.part()
			c.click("//a[@aria-label='Zoom in']")
			c.find(fmt.Sprintf("//*[@data-part!=%q]", before))
			c.click("(//*[local-name()='svg']//*[local-name()='a'])[last()]") // a tile
			c.find("//h3[contains(., 'Files at')]")
			c.sees(".tif")
			c.find("//*[local-name()='path' and @class='hit']")
			if withScript {
				c.movesMap(`wheel(-40)`, `wheel(-40)`, `wheel(-40)`)
				c.movesMap(`hand("down", 1, 0)`, `hand("move", 1, 40)`, `hand("move", 1, 90)`, `hand("up", 1, 90)`)
				c.movesMap(`hand("down", 1, -20)`, `hand("down", 2, 20)`, `hand("move", 2, 60)`, `hand("up", 1, -20)`, `hand("up", 2, 60)`)
			}
			c.follow("Report")
			c.click("//section[@aria-labelledby='f-corrupt']//summary")
			c.click("//section[@aria-labelledby='f-corrupt']//input[@value='broken.tif']")
			c.fill("note", "known")
			c.press("Accept")
			c.sees("Saved.")
			if n := ts.queryInt(`SELECT count(*) FROM accepted_findings WHERE path = 'broken.tif' AND note = 'known' AND accepted_by = 'ada'`); n != 1 {
				t.Errorf("%d findings accepted", n)
			}
			c.press("Sign out")
			c.sees("You have signed out")
			c.open("/datasets/1")
			c.find("//h1[.='Sign in']")
			c.signIn("ada", "a long enough one")
			c.fill("otp", recovery)
			c.press("Sign in")
			c.find("//h1[.='alps']")
		})
	}
}

// part returns the part of the map that the page shows.
func (c *chromium) part() any {
	c.t.Helper()
	return c.call("GET", c.find("//*[@data-part]")+"/attribute/data-part", nil)
}

// movesMap sends events of the wheel or the hand to the map, in its middle or so many pixels beside it. The picture moves
// at once. Then it waits for another part of the map.
func (c *chromium) movesMap(events ...string) {
	c.t.Helper()
	before := c.part()
	moved := c.run(`const map = document.querySelector("[data-part]"), box = map.getBoundingClientRect();
		const at = off => ({clientX: box.left + box.width / 2 + off, clientY: box.top + box.height / 2, cancelable: true, bubbles: true});
		const wheel = deltaY => new WheelEvent("wheel", {deltaY, ctrlKey: true, ...at(0)});
		const hand = (what, pointerId, off) => new PointerEvent("pointer" + what, {pointerId, ...at(off)});
		map.setPointerCapture = () => {}; // there is no real pointer
		for (const event of [` + strings.Join(events, ", ") + `]) map.dispatchEvent(event);
		arguments[arguments.length - 1](map.querySelector(".moving").hasAttribute("transform"))`)
	check(c.t, "the picture follows "+strings.Join(events, ", "), moved, any(true))
	c.find(fmt.Sprintf("//*[@data-part!=%q]", before))
}

// TestPeerBrowserScripts: the wheel alone scrolls the page and leaves the map as it is. A long name does not push columns
// out of a table. A form that would lose ticks of another one asks first.
func TestPeerBrowserScripts(t *testing.T) {
	ts, root := startWithSamples(t)
	root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "alps", "path": "alps"}).header.Get("Location"), nil)
	root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "keeper", "permissions": []string{}})
	c := startChromium(t, ts.url, true)
	c.open("/datasets/1")
	c.signIn("root", testPassword)
	c.find("//*[@data-part]")
	scrolls := c.run(`const map = document.querySelector("[data-part]"), done = arguments[arguments.length - 1];
		done(map.dispatchEvent(new WheelEvent("wheel", {deltaY: 100, cancelable: true, bubbles: true})))`)
	check(t, "the wheel scrolls", scrolls, any(true))

	// Two clicks on the map lead to a profile. The relief is below the outlines.
	click := func(part float64) {
		c.run(fmt.Sprintf(`const map = document.querySelector("[data-part]"), box = map.getBoundingClientRect();
			map.dispatchEvent(new MouseEvent("click", {detail: 1, bubbles: true, cancelable: true,
				clientX: box.x + box.width * %v, clientY: box.y + box.height / 2}));
			arguments[arguments.length - 1]()`, part))
	}
	click(0.4)
	c.find("//h3[@id='there']")
	drawn := c.run(`const image = new Image(), done = arguments[arguments.length - 1];
		image.onload = () => done(image.width + " by " + image.height);
		image.onerror = () => done("no picture");
		image.src = document.querySelector(".map image").href.baseVal`)
	check(t, "the relief", drawn, any("720 by 540"))
	click(0.6)
	c.click("//a[contains(@href, '/profile?from=')]")
	c.find("//h1[normalize-space()='Heights along a line']")
	c.open("/datasets/1")

	// A long name leaves room for the other columns.
	ts.exec(`UPDATE users SET display_name = repeat('x', 100)`)
	ts.exec(`UPDATE elevation_dataset_file_meta SET path = repeat('y', 240) WHERE path = 'broken.tif'`)
	c.look(1280, false)
	for _, path := range []string{"/users", "/datasets/1/files"} {
		c.open(path)
		fits := c.run(`const box = document.querySelector(".scroll"); arguments[arguments.length - 1](box.scrollWidth <= box.clientWidth)`)
		check(t, path+" fits", fits, any(true))
	}

	// A time is typed in the reader's zone, and shown in it again.
	c.devtools("Emulation.setTimezoneOverride", map[string]any{"timezoneId": "America/Los_Angeles"})
	c.open("/messages/new")
	c.fill("title", "Later", "body", "It comes.")
	c.run(`document.querySelector("input[name=publish_at]").value = "2100-07-01T09:00"; arguments[arguments.length - 1]()`)
	c.sees("Publish at (your time, America/Los_Angeles)")
	c.press("Publish")
	c.follow("Later")
	typed := c.run(`arguments[arguments.length - 1](document.querySelector("input[name=publish_at]").value)`)
	check(t, "the time in the form", typed, any("2100-07-01T09:00"))
	check(t, "times in UTC", ts.queryInt(`SELECT count(*) FROM system_messages WHERE publish_at = '2100-07-01T16:00Z'`), 1)
	c.open("/audit?since=2026-01-31")
	c.fill("until", "2100-01-31")
	c.press("Search")
	c.find("//input[@name='until' and @value='2100-02-01 00:00']")
	if at := c.call("GET", "/url", nil).(string); !strings.Contains(at, "since=2026-01-31T08%3A00%3A00Z&until=2100-02-01T08%3A00%3A00Z") {
		t.Errorf("the filters are %s", at)
	}

	// On paper the report has its map and no control.
	c.open("/datasets/1/report")
	c.devtools("Emulation.setEmulatedMedia", map[string]any{"media": "print"})
	seen := c.run(`const seen = what => [...document.querySelectorAll(what)].filter(e => e.checkVisibility()).length;
		arguments[arguments.length - 1]([seen("button, input, textarea, header, footer"), seen(".map svg"), seen("h1")])`)
	check(t, "controls, maps and titles on paper", fmt.Sprint(seen), "[0 1 1]")
	c.look(1280, false)

	c.open("/roles")
	c.click("//input[@aria-label='keeper may audit.read']")
	c.click("//input[@aria-label='member may dataset.download']")
	c.click("//button[@aria-label='Save permissions of member']")
	c.call("POST", "/alert/dismiss", nil)
	check(t, "ticks saved", ts.queryInt(`SELECT count(*) FROM role_permissions WHERE permission IN ('audit.read', 'dataset.download')`), 0)
	c.click("//button[@aria-label='Save permissions of member']")
	c.call("POST", "/alert/accept", nil)
	c.sees("Saved.")
	check(t, "ticks saved", ts.queryInt(`SELECT count(*) FROM role_permissions WHERE permission = 'dataset.download'`), 1)
}

// browserPages returns the paths of all pages for people.
func browserPages(ts *testServer) []string {
	return []string{"/", "/inbox", "/account", "/account/totp", "/messages", "/messages/new", "/messages/1", "/users", "/users/" + userID(ts, "root"), "/roles", "/audit",
		"/datasets", "/datasets/1", "/datasets/1?point=7.5,45.9", "/datasets/1/files", "/files", "/datasets/1/analyses/1", "/datasets/1/report", "/nowhere"}
}

// axe is the source of axe-core, fetched once.
var axe = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "axe-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	install := exec.Command("npm", "install", "--prefix", dir, "--cache", filepath.Join(dir, "cache"), "--ignore-scripts", "axe-core@"+axeVersion)
	if output, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, output)
	}
	source, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	return string(source), err
})

// violations returns what axe-core finds on the page, or "".
func (c *chromium) violations() string {
	c.t.Helper()
	source, err := axe()
	if err != nil {
		c.t.Fatal(err)
	}
	const run = `; const done = arguments[arguments.length - 1];
		axe.run(document).then(r => done(r.violations.map(v => v.id + ": " + v.help + "\n" + v.nodes.map(n => "  " + n.html + " " + n.failureSummary).join("\n")).join("\n")), e => done(String(e)))`
	said, _ := c.run(source + run).(string)
	return said
}

// TestPeerBrowserAccessible: axe-core finds nothing wrong with any page, in light and dark colours, wide and narrow.
// With CAIRN_SCREENSHOTS it writes pictures of six pages into that directory.
func TestPeerBrowserAccessible(t *testing.T) {
	ts, root := startWithSamples(t)
	root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "alps", "path": "alps", "description": "Tiles of the Alps"}).header.Get("Location"), nil)
	root.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "New tiles", "body": "The tiles of 2026 are in the folder alps.\nHave a look."})
	root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "keeper", "description": "looks after the files", "permissions": []string{datasetRead, datasetManage, datasetAnalyze}})
	root.must(201, "POST", permissionsPath, map[string]string{"name": "wiki.edit", "meaning": "Edit the wiki."})
	for _, name := range []string{"ada", "grace", "barbara"} {
		ts.addUser(name, datasetRead)
	}
	ts.addToken("root", "nightly", datasetRead, datasetAnalyze)
	ts.exec(`DELETE FROM system_message_watermarks`)
	c := startChromium(t, ts.url, true)
	check := func(path string) {
		for _, dark := range []bool{false, true} {
			for _, width := range []int{1280, 390} {
				c.look(width, dark)
				if said := c.violations(); said != "" {
					t.Errorf("%s, %d pixels, dark %v: %s", path, width, dark, said)
				}
			}
		}
	}
	for _, path := range []string{"/", "/register", "/set-password", "/login"} {
		c.open(path)
		check(path)
	}
	c.signIn("root", "wrong")
	c.sees("is wrong")
	check("/login refused")
	ts.signIn("linus", datasetRead).enrol(&testClock{})
	c.signIn("linus", testPassword)
	c.find("//input[@name='otp']")
	check("/login, second step")
	c.fill("otp", "123")
	c.press("Sign in")
	c.sees("The code is wrong")
	check("/login, second step refused")
	c.follow("Back to name and password")
	c.signIn("root", testPassword)
	c.find("//h1[.='Cairn']")
	for _, path := range browserPages(ts) {
		c.open(path)
		check(path)
	}
	dir := os.Getenv("CAIRN_SCREENSHOTS")
	if dir == "" {
		return
	}
	for name, path := range map[string]string{"home": "/", "inbox": "/inbox", "roles": "/roles", "map": "/datasets/1?bbox=8,46,12,48.5&point=10.1,47.9", "report": "/datasets/1/report", "account": "/account"} {
		for _, width := range []int{1280, 390} {
			c.look(width, name == "inbox" || name == "report")
			c.open(path)
			shot := c.devtools("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": width > 500 && name != "roles" && name != "account" && name != "map"})
			picture, err := base64.StdEncoding.DecodeString(shot["data"].(string))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("page-%s-%d.png", name, width)), picture, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPeerBrowserProxies: behind nginx and Caddy, with the snippets of the README, somebody who is not signed in comes to
// the login page and back to the page that they wanted, also with a second factor.
func TestPeerBrowserProxies(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *testServer) *proxied{"nginx": startNginx, "Caddy": startCaddy} {
		t.Run(name, func(t *testing.T) {
			clock := &testClock{}
			ts := startTOTP(t, clock)
			ts.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('wiki.edit', 'Edit the wiki.')`)
			_, recovery := ts.signIn("ada", "wiki.edit").enrol(clock)
			x := start(t, ts)
			c := startChromium(t, x.web.url, true)
			c.open("/wiki/page?a=1&b=2")
			c.find("//h1[.='Sign in']")
			if x.seen != nil {
				t.Error("the program was asked before the sign-in")
			}
			c.signIn("ada", testPassword)
			c.fill("otp", recovery[0])
			c.press("Sign in")
			c.find("//pre[.='{}']") // the program's answer
			if at := c.call("GET", "/url", nil); at != x.web.url+"/wiki/page?a=1&b=2" {
				t.Errorf("the browser comes back to %v", at)
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			if x.seen.Get("X-Cairn-User") != "ada" || strings.Contains(x.seen.Get("Cookie"), "cairn") {
				t.Errorf("the program sees %v", x.seen)
			}
		})
	}
}

// TestPeerBrowserOrigins: forms that pages of other origins send for somebody who is signed in change nothing.
func TestPeerBrowserOrigins(t *testing.T) {
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	form := `<!doctype html><title>evil</title><form method="post" action="%s/account/name"><input name="display_name" value="Thief"><button>Click</button></form>`
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, form, ts.url)
	}))
	defer evil.Close()
	c := startChromium(t, ts.url, true)
	c.open("/account")
	c.signIn("ada", testPassword)
	c.find("//h1[.='Your account']")
	for name, address := range map[string]string{
		"same site":  evil.URL, // another port: the cookie comes along
		"other site": strings.Replace(evil.URL, "127.0.0.1", "localhost", 1),
		"data":       "data:text/html," + url.PathEscape(fmt.Sprintf(form, ts.url)),
	} {
		c.open(address)
		c.press("Click")
		c.find("//h1[.='Forbidden' or .='Unauthorized']")
		if n := ts.queryInt(`SELECT count(*) FROM users WHERE display_name <> ''`); n != 0 {
			t.Errorf("a form from %s changed the name", name)
		}
	}
	c.open("/account")
	c.fill("display_name", "Ada")
	ts.exec(`UPDATE sessions SET ended_at = now()`)
	c.press("Save the name")
	c.sees("Your session has ended")
	if n := ts.queryInt(`SELECT count(*) FROM users WHERE display_name <> ''`); n != 0 {
		t.Error("a stale session changed the name")
	}
	c.signIn("ada", testPassword)
	c.press("Send it") // the form that was kept
	c.sees("Saved.")
}

// addAuthenticator gives the browser an authenticator that verifies its user and keeps passkeys, and returns its id.
func (c *chromium) addAuthenticator() string {
	c.t.Helper()
	c.devtools("WebAuthn.enable", map[string]any{})
	added := c.devtools("WebAuthn.addVirtualAuthenticator", map[string]any{"options": map[string]any{
		"protocol":                    "ctap2",
		"transport":                   "internal",
		"hasResidentKey":              true,
		"hasUserVerification":         true,
		"isUserVerified":              true,
		"automaticPresenceSimulation": true,
	}})
	return added["authenticatorId"].(string)
}

// credentials returns the passkeys of an authenticator.
func (c *chromium) credentials(authenticator string) []any {
	c.t.Helper()
	return c.devtools("WebAuthn.getCredentials", map[string]any{"authenticatorId": authenticator})["credentials"].([]any)
}

// TestPeerPasskeys: Chromium adds a passkey on the account's page, signs in with it, gives it in place of a code, confirms
// changes with it, and ends it. The service refuses a copy of the key that has signed less, another user's key and a page of
// another origin.
func TestPeerPasskeys(t *testing.T) {
	ts := startServer(t, nil)
	site := strings.Replace(ts.url, "127.0.0.1", "localhost", 1) // passkeys are bound to a name
	ts.core.cfg.baseURL = site
	ts.addUser("ada", datasetRead)
	ts.addUser("bob", datasetRead)
	c := startChromium(t, site, true)
	authenticator := c.addAuthenticator()
	passkeys := func() int { return ts.queryInt(`SELECT count(*) FROM passkeys`) }

	// Add one.
	c.open("/account")
	c.signIn("ada", testPassword)
	c.find("//h1[.='Your account']")
	c.click("//form[@action='/account/passkeys']//button") // the form is not complete
	check(t, "passkeys after an empty form", passkeys(), 0)
	form := "//form[@action='/account/passkeys']//input[@name='%s']"
	typeInto := func(xpath, text string) { c.call("POST", c.find(xpath)+"/value", map[string]any{"text": text}) }
	add := func() {
		typeInto(fmt.Sprintf(form, "name"), "laptop")
		typeInto(fmt.Sprintf(form, "current_password"), testPassword)
		c.press("Add a passkey")
	}
	ts.exec(`UPDATE sessions SET ended_at = now()`)
	add()
	c.sees("Your session has ended. Sign in again.")
	c.open("/account")
	c.signIn("ada", testPassword)
	c.find("//h1[.='Your account']")
	add()
	c.sees("Saved.")
	c.find("//summary[.='End laptop']")
	check(t, "passkeys", passkeys(), 1)
	c.press("Sign out")
	c.sees("You have signed out")

	// Sign in with it alone, on the way to another page.
	c.open("/login?next=/datasets")
	c.press("Sign in with a passkey")
	c.find("//h1[.='Datasets']")
	check(t, "logins by passkey", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.login' AND after ->> 'name' = 'laptop'`), 1)

	// Confirm a change with it.
	c.open("/account")
	c.fill("email", "ada@example.org")
	typeInto("//form[@action='/account/email']//input[@name='current_password']", testPassword)
	c.click("//form[@action='/account/email']//button[.='Use a passkey']")
	c.click("//form[@action='/account/email'][.//button[.='Passkey used']]//button[.='Save the address']")
	c.sees("Saved.")
	c.press("Sign out")

	// Give it in place of a code.
	c.open("/login")
	c.signIn("ada", testPassword)
	c.press("Use a passkey")
	c.find("//a[.='ada']")
	c.press("Sign out")
	c.sees("You have signed out")

	// A copy of the key has signed less often than the service has seen.
	copied := c.credentials(authenticator)[0].(map[string]any)
	copied["signCount"] = 1
	c.devtools("WebAuthn.removeCredential", map[string]any{"authenticatorId": authenticator, "credentialId": copied["credentialId"]})
	c.devtools("WebAuthn.addCredential", map[string]any{"authenticatorId": authenticator, "credential": copied})
	c.open("/login")
	c.press("Sign in with a passkey")
	c.sees("The passkey was not accepted")
	copied["signCount"] = 1000
	c.devtools("WebAuthn.removeCredential", map[string]any{"authenticatorId": authenticator, "credentialId": copied["credentialId"]})
	c.devtools("WebAuthn.addCredential", map[string]any{"authenticatorId": authenticator, "credential": copied})

	// A user who is not verified cannot sign in with the passkey alone.
	verified := func(is bool) {
		c.devtools("WebAuthn.setUserVerified", map[string]any{"authenticatorId": authenticator, "isUserVerified": is})
	}
	verified(false)
	c.open("/login")
	c.press("Sign in with a passkey")
	c.find("//p[@role='alert']")
	verified(true)

	// Another user's passkey is no second factor.
	ts.exec(`UPDATE users SET passkey = true WHERE username = 'bob'`)
	c.open("/login")
	c.signIn("bob", testPassword)
	c.press("Use a passkey")
	c.sees("The code is wrong")

	// A service at another address refuses the answer. This one takes it once.
	c.open("/login")
	answer := c.passkeyAnswer("askPasskey({ isAlone: true })")
	ts.core.cfg.baseURL = strings.Replace(site, "localhost", "127.0.0.1", 1)
	checkAnswer(t, "the answer to another origin", ts.client().loginPasskey(answer), 401, "passkey_invalid")
	ts.core.cfg.baseURL = site
	local := client{t: t, url: site}
	checkAnswer(t, "the answer", local.loginPasskey(answer), 200, "")
	checkAnswer(t, "the same answer again", local.loginPasskey(answer), 401, "passkey_invalid")

	// End it.
	c.open("/login?next=/account")
	c.press("Sign in with a passkey")
	c.find("//h1[.='Your account']")
	c.click("//summary[.='End laptop']")
	end := "//form[contains(@action, '/end') and contains(@action, '/account/passkeys/')]"
	typeInto(end+"//input[@name='current_password']", testPassword)
	c.click(end + "//button[.='Use a passkey']")
	c.click(end + "[.//button[.='Passkey used']]//button[.='End the passkey']")
	c.sees("Ended.")
	check(t, "passkeys", passkeys(), 0)
	c.press("Sign out")
	c.open("/login")
	c.press("Sign in with a passkey")
	c.sees("The passkey was not accepted")
}

// passkeyAnswer returns the result of an expression of the page's script.
func (c *chromium) passkeyAnswer(expression string) string {
	c.t.Helper()
	text, _ := c.run(expression + `.then(arguments[arguments.length - 1])`).(string)
	return text
}

// TestPeerPasskeysWithoutScript: without JavaScript, and without CAIRN_BASE_URL, no passkey is offered, and the pages work.
func TestPeerPasskeysWithoutScript(t *testing.T) {
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	c := startChromium(t, ts.url, false)
	c.open("/login")
	check(t, "offered without the setting", strings.Contains(c.call("GET", "/source", nil).(string), "passkey"), false)
	ts.core.cfg.baseURL = ts.url
	c.open("/login")
	shown := c.call("GET", c.find("//button[@data-passkey]")+"/displayed", nil)
	check(t, "the button is shown", shown, any(false))
	c.signIn("ada", testPassword)
	c.open("/account")
	c.sees("Passkeys need JavaScript.")
}
