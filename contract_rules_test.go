package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// provocation is a request that its route refuses because of the row that it has in the route table.
type provocation struct {
	path    string // empty: that of a request that would succeed
	query   string
	body    any
	headers []string
}

// provocations returns a request for each code that any row may imply, but for those that other tests provoke. body is
// one with which a request would succeed.
func provocations(rt route, body any) map[string]provocation {
	first, _, _ := strings.Cut(rt.query, " ")
	return map[string]provocation{
		"not_found":              {path: regexp.MustCompile(`\{.*?\}`).ReplaceAllString(rt.path, "nothing"), body: body},
		"malformed_query":        {query: "a=%zz"},
		"unknown_parameter":      {query: "nothing=1"},
		"duplicate_parameter":    {query: first + "=1&" + first + "=1"},
		"invalid_cursor":         {query: "cursor=x"},
		"cross_origin":           {headers: []string{"Sec-Fetch-Site: cross-site"}},
		"body_too_large":         {body: strings.Repeat(" ", int(rt.maxBody)+1)},
		"malformed_json":         {body: "{"},
		"trailing_data":          {body: "{} {}"},
		"unknown_field":          {body: `{"nothing": 1}`},
		"duplicate_field":        {body: `{"a": 1, "a": 1}`},
		"unsupported_media_type": {body: "{}", headers: []string{"Content-Type: text/plain"}},
	}
}

// provokedElsewhere are the codes of rows that other tests provoke: of callers (TestAuthorizationMatrix), of outages and
// overload, and of values that each operation checks for itself.
const provokedElsewhere = " not_signed_in invalid_token session_required permission_missing token_scope second_factor_missing" +
	" wrong_host internal database_unavailable too_slow busy body_unreadable wrong_type invalid method_not_allowed "

// TestProblemsOfKinds: every operation refuses a request as the table in the response Problem of openapi.yaml says.
func TestProblemsOfKinds(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	root := m.signIn("root", "all")
	for _, rt := range apiRoutes(m.server) {
		name := strings.Replace(rt.method+" "+rt.path, "...}", "}", 1)
		method, documented, _ := strings.Cut(name, " ")
		operation := at(document(), "paths", documented, strings.ToLower(method))
		path, body := m.target(rt)
		path, _, _ = strings.Cut(path, "?")
		requests := provocations(rt, body)

		for _, rule := range problemRules() {
			if !isOfKind(rule.kind, name, operation) {
				continue
			}
			for _, code := range rule.codes {
				if strings.Contains(provokedElsewhere, " "+code+" ") {
					continue
				}
				t.Run(fmt.Sprint(name, " ", code), func(t *testing.T) {
					status, _ := strconv.Atoi(rule.status)
					p := requests[code]
					target := cmp.Or(p.path, path) + "?" + p.query
					client{t, m.url, root.token}.refused(status, code, rt.method, target, p.body, p.headers...)
				})
			}
		}
	}
}
