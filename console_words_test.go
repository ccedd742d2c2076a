package main

import (
	"strings"
	"testing"
)

// TestNavigation: the navigation marks the page that is shown, and on a page below another the one above it.
func TestNavigation(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	ts.exec(`INSERT INTO datasets (name, path) VALUES ('alps', 'alps')`)
	b := ts.browse("root")
	for path, want := range map[string]string{
		"/":                                  "",
		"/datasets":                          `href="/datasets" aria-current="page"`,
		"/datasets/1":                        `href="/datasets" aria-current="true"`,
		"/datasets/1/files":                  `href="/datasets" aria-current="true"`,
		"/datasets/1/report":                 `href="/datasets" aria-current="true"`,
		"/users/" + userID(ts, "root"):       `href="/users" aria-current="true"`,
		"/messages/new":                      `href="/messages" aria-current="true"`,
		"/audit?actor=root&since=2026-01-31": `href="/audit" aria-current="page"`,
	} {
		var marked []string
		for _, link := range strings.Split(b.shows(200, "GET", path, ""), "<a ")[1:] {
			tag, _, _ := strings.Cut(link, ">")
			if strings.Contains(tag, "aria-current") {
				marked = append(marked, strings.TrimSpace(tag))
			}
		}
		check(t, path, strings.Join(marked, ", "), want)
	}
}

// TestDeviceNames: pages name the browser and the system of a session, and what is neither as it is.
func TestDeviceNames(t *testing.T) {
	t.Parallel()
	const mozilla, webkit = "Mozilla/5.0 ", " AppleWebKit/537.36 (KHTML, like Gecko) "
	for agent, want := range map[string]string{
		mozilla + "(X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0":                              "Firefox on Linux",
		mozilla + "(X11; Linux x86_64)" + webkit + "Chrome/126.0.0.0 Safari/537.36":                         "Chrome on Linux",
		mozilla + "(Windows NT 10.0; Win64; x64)" + webkit + "Chrome/126.0.0.0 Safari/537.36 Edg/126.0.0.0": "Edge on Windows",
		mozilla + "(Linux; Android 10; K)" + webkit + "Chrome/126.0.0.0 Mobile Safari/537.36":               "Chrome on Android",
		mozilla + "(Macintosh; Intel Mac OS X 10_15_7)" + webkit + "Version/17.5 Safari/605.1.15":           "Safari on Mac",
		mozilla + "(iPhone; CPU iPhone OS 17_5 like Mac OS X)" + webkit + "Version/17.5 Safari/604.1":       "Safari on iPhone",
		"curl/8.8.0": "curl/8.8.0",
		"":           "",
	} {
		check(t, agent, deviceName(agent), want)
	}
}

// TestRefusalNamesLabel: the words above a refused form name the field by its label on the page.
func TestRefusalNamesLabel(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	ts.exec(`INSERT INTO datasets (name, path) VALUES ('alps', 'alps')`)
	b := ts.browse("root")
	b.shows(422, "POST", "/messages", "title=Hello&body=World&severity=info", "<p>For: must name a role, or everybody")
	b.shows(422, "POST", "/datasets", "name=new", "<p>Directory: ")
	b.shows(422, "POST", "/datasets/1", "name=alps&about.surveyed_from=2026-02-01&about.surveyed_until=2026-01-01",
		"<p>Surveyed until: must not be before the first day")
}
