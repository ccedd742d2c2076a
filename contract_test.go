package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// node is a part of openapi.yaml: a map of nodes, a list of them, text, or a boolean.
type node = any

// document is openapi.yaml, read once.
var document = sync.OnceValue(func() map[string]node {
	var lines []string
	for line := range strings.Lines(string(contract)) {
		if line = strings.TrimRight(line, "\n"); !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	y := &yamlReader{lines: lines}
	return y.block(0).(map[string]node)
})

// TestVersion: the program, its contract and the description for OGC clients have the same version.
func TestVersion(t *testing.T) {
	inContract := document()["info"].(map[string]node)["version"]
	if inContract != version {
		t.Errorf("openapi.yaml has version %v, not %s", inContract, version)
	}
	if !bytes.Contains(stacAPI, []byte(`"version": "`+version+`"`)) {
		t.Errorf("dataset_stac_api.json does not have version %s", version)
	}
}

// yamlReader reads the part of YAML that openapi.yaml is written in: nested blocks of "key: value" and "- value",
// text of several lines after "|", and maps, lists, quoted and plain text on a line.
type yamlReader struct {
	lines []string
	flow  string // what is left of a line
}

// block reads the lines that are indented as much as the first.
func (y *yamlReader) block(indent int) node {
	depth := func() int {
		if len(y.lines) == 0 {
			return -1
		}
		return len(y.lines[0]) - len(strings.TrimLeft(y.lines[0], " "))
	}
	object, list := map[string]node{}, []node(nil)
	for depth() == indent {
		text := y.lines[0][indent:]
		if item, isItem := strings.CutPrefix(text, "- "); isItem {
			if strings.HasPrefix(item, "{") || !strings.Contains(item, ": ") && !strings.HasSuffix(item, ":") {
				y.lines = y.lines[1:]
				list = append(list, y.line(item))
			} else { // a block that begins on this line
				y.lines[0] = strings.Repeat(" ", indent+2) + item
				list = append(list, y.block(indent+2))
			}
			continue
		}
		y.lines = y.lines[1:]
		y.flow = text
		key := fmt.Sprint(y.scalar(":"))
		rest := strings.TrimPrefix(y.flow, ":")
		if rest == " |" {
			object[key] = y.text(indent)
		} else if rest == "" {
			object[key] = y.block(depth())
		} else {
			object[key] = y.line(strings.TrimSpace(rest))
		}
	}
	if list != nil {
		return list
	}
	return object
}

// text reads the lines that are indented more than indent, and blank ones between them.
func (y *yamlReader) text(indent int) string {
	var text strings.Builder
	margin := strings.Repeat(" ", indent+1)
	for len(y.lines) > 0 && (y.lines[0] == "" || strings.HasPrefix(y.lines[0], margin)) {
		text.WriteString(strings.TrimSpace(y.lines[0]) + "\n")
		y.lines = y.lines[1:]
	}
	return text.String()
}

// line reads a value that is all on a line.
func (y *yamlReader) line(text string) node {
	y.flow = text
	if !strings.ContainsRune("{[\"", rune(text[0])) {
		return plain(text)
	}
	value := y.value()
	if y.flow != "" {
		panic("openapi.yaml: " + text)
	}
	return value
}

// value reads a value within a line.
func (y *yamlReader) value() node {
	switch y.flow[0] {
	case '{':
		object := map[string]node{}
		for y.flow = y.flow[1:]; y.flow[0] != '}'; y.flow = strings.TrimPrefix(y.flow, ", ") {
			key := fmt.Sprint(y.scalar(":"))
			y.flow = strings.TrimPrefix(y.flow, ": ")
			object[key] = y.value()
		}
		y.flow = y.flow[1:]
		return object
	case '[':
		list := []node{}
		for y.flow = y.flow[1:]; y.flow[0] != ']'; y.flow = strings.TrimPrefix(y.flow, ", ") {
			list = append(list, y.value())
		}
		y.flow = y.flow[1:]
		return list
	}
	return y.scalar(",}]")
}

// scalar reads text: quoted, or to one of the characters.
func (y *yamlReader) scalar(ends string) node {
	if strings.HasPrefix(y.flow, `"`) {
		quoted, err := strconv.QuotedPrefix(y.flow)
		if err != nil {
			panic("openapi.yaml: " + y.flow)
		}
		y.flow = y.flow[len(quoted):]
		text, _ := strconv.Unquote(quoted)
		return text
	}
	end := strings.IndexAny(y.flow, ends)
	text := y.flow[:end]
	y.flow = y.flow[end:]
	return plain(text)
}

// plain returns the value that text without quotes stands for.
func plain(text string) node {
	switch text {
	case "true", "false":
		return text == "true"
	case "null":
		return nil
	}
	if number, err := strconv.ParseFloat(text, 64); err == nil {
		return number
	}
	return text
}

// at returns the node at a path of keys, or nil if there is none.
func at(n node, keys ...string) node {
	for _, key := range keys {
		object, _ := n.(map[string]node)
		n = follow(object[key])
	}
	return n
}

// follow returns the node that a reference names, or the node itself if it is no reference.
func follow(n node) node {
	if target, ok := fields(n)["$ref"].(string); ok {
		return at(document(), strings.Split(strings.TrimPrefix(target, "#/"), "/")...)
	}
	return n
}

// fields returns a node as a map, or nil if it is not one.
func fields(n node) map[string]node {
	object, _ := n.(map[string]node)
	return object
}

// apiRoutes returns the rows of the route table that openapi.yaml describes: all but the pages for people.
func apiRoutes(s *server) []route { return slices.DeleteFunc(s.routes(), route.isPage) }

// TestContract: the document has every route of the API, with who may call it and its parameters, and no other.
func TestContract(t *testing.T) {
	t.Parallel()
	documented := map[string]map[string]node{}
	for path, methods := range fields(at(document(), "paths")) {
		for method, operation := range fields(methods) {
			documented[strings.ToUpper(method)+" "+path] = fields(operation)
		}
	}
	for _, rt := range apiRoutes(&server{}) {
		rt.path = strings.Replace(rt.path, "...}", "}", 1)
		name := rt.method + " " + rt.path
		operation := documented[name]
		if operation == nil {
			t.Errorf("%s is not documented", name)
			continue
		}
		delete(documented, name)
		responses := fields(at(operation, "responses"))
		if at(responses, "default") == nil {
			t.Errorf("%s has no default response", name)
		}
		for status, response := range responses {
			for _, code := range impliedCodes(name, operation, status) {
				if slices.Contains(codesIn(follow(response)), code) {
					t.Errorf("%s: %s %s follows from the kind of the operation", name, status, code)
				}
			}
		}
		for _, status := range []string{"200", "206"} {
			if strings.Contains(rt.path, "/data/") && at(operation, "responses", status, "headers", "Cache-Control") == nil {
				t.Errorf("%s: Cache-Control with status %s is not documented", name, status)
			}
		}
		if got := operation["x-cairn-access"]; got != string(rt.who) {
			t.Errorf("%s: documented for %v, is for %s", name, got, rt.who)
		}
		var query []string
		list, _ := operation["parameters"].([]node)
		for _, parameter := range list {
			parameter = follow(parameter)
			if at(parameter, "in") == "query" {
				query = append(query, fmt.Sprint(at(parameter, "name")))
			} else if at(parameter, "in") == "path" && !strings.Contains(rt.path, fmt.Sprintf("{%s}", at(parameter, "name"))) {
				t.Errorf("%s has no %s", name, at(parameter, "name"))
			}
		}
		if want := strings.Fields(rt.query); !slices.Equal(slices.Sorted(slices.Values(query)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: documented are the parameters %v, it takes %v", name, query, want)
		}
	}
	for name := range documented {
		t.Errorf("%s is documented and not there", name)
	}
	a := startServer(t, nil).client().must(200, "GET", "/api/v1/openapi.yaml", nil)
	if string(a.body) != string(contract) || a.header.Get("Content-Type") != "application/yaml" {
		t.Error("the service hands out another document")
	}
}

// TestContractExplains: the document says of every operation, parameter, answer and field what it is, and has a value
// for every field that fits.
func TestContractExplains(t *testing.T) {
	t.Parallel()
	said := func(where string, n node) {
		if text, _ := at(n, "description").(string); text == "" {
			t.Errorf("%s has no description", where)
		}
	}
	ids := map[node]string{}
	for path, methods := range fields(at(document(), "paths")) {
		for method, operation := range fields(methods) {
			name := strings.ToUpper(method) + " " + path
			if id := at(operation, "operationId"); id == nil || ids[id] != "" || at(operation, "summary") == nil {
				t.Errorf("%s has no summary, or its operationId %v is that of %q", name, id, ids[id])
			} else {
				ids[id] = name
			}
			list, _ := at(operation, "parameters").([]node)
			for _, parameter := range list {
				said(fmt.Sprint(name, ": ", at(follow(parameter), "name")), follow(parameter))
			}
			for status := range fields(at(operation, "responses")) {
				said(name+": "+status, at(operation, "responses", status))
			}
			body := at(operation, "requestBody", "content", "application/json")
			for field, property := range fields(at(body, "schema", "properties")) {
				said(name+": "+field, property)
				for _, value := range []node{property, at(property, "items")} { // checkJSON looks at the outer object
					if field == "intersects" || field == "line" || field == "sortby" {
						continue // readGeometry, places or sortText looks at it
					}
					if at(value, "type") == "object" || at(value, "properties") != nil {
						t.Errorf("%s: %s has an object", name, field)
					}
				}
			}
			if wrong := mismatch("", at(body, "example"), at(body, "schema")); body != nil && wrong != "" {
				t.Errorf("%s: the example of the body: %s", name, wrong)
			}
		}
	}
	var explained func(where string, schema node)
	explained = func(where string, schema node) {
		for name, property := range fields(at(schema, "properties")) {
			name = where + "." + name
			explained(name, property)
			said(name, follow(property))
			example, ok := fields(property)["example"]
			refers := strings.Contains(fmt.Sprint(property), "$ref") || at(property, "properties") != nil || at(property, "const") != nil
			if !ok && !refers {
				t.Errorf("%s has no example", name)
			} else if wrong := mismatch(name, example, property); ok && wrong != "" {
				t.Errorf("the example of %s", wrong)
			}
		}
	}
	for name, schema := range fields(at(document(), "components", "schemas")) {
		said(name, schema)
		explained(name, schema)
	}
}

// documentedRoute is the path of the route table that a request's path is one of.
func documentedRoute(method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	if path == stacPath+"/" { // the same as stacPath
		path = stacPath
	}
	parts, best := strings.Split(path, "/"), ""
	for template, methods := range fields(at(document(), "paths")) {
		places := strings.Split(template, "/")
		if n := len(places); places[n-1] == "{path}" && len(parts) > n { // which has slashes
			parts := append(slices.Clone(parts[:n-1]), "path")
			if documentedRoute(method, strings.Join(parts, "/")) == template {
				return template
			}
		}
		matches := len(places) == len(parts) && at(methods, strings.ToLower(method)) != nil
		for i := range places {
			matches = matches && (places[i] == parts[i] || strings.HasPrefix(places[i], "{") && parts[i] != "")
		}
		if matches && (best == "" || strings.Count(template, "{") < strings.Count(best, "{")) {
			best = template
		}
	}
	return best
}

// codesIn returns the words of the description of a response that may be codes.
func codesIn(response node) []string {
	isNoCode := func(c rune) bool { return c != '_' && (c < 'a' || c > 'z') }
	text, _ := at(response, "description").(string)
	return strings.FieldsFunc(text, isNoCode)
}

// problemRule is a row of the table in the response Problem: operations of that kind may answer with these codes.
type problemRule struct {
	kind   string
	status string
	codes  []string
}

// problemRules returns the rows of the table in the response Problem.
var problemRules = sync.OnceValue(func() (rules []problemRule) {
	text, _ := at(document(), "components", "responses", "Problem", "description").(string)
	for _, row := range regexp.MustCompile(`(?m)^\| (.+) \| (\d+) \| (.+) \|$`).FindAllStringSubmatch(text, -1) {
		rules = append(rules, problemRule{row[1], row[2], strings.Split(row[3], ", ")})
	}
	return rules
})

// impliedCodes returns the codes that the operation may have with a status, because of its kind. name is its method and
// path. The operation is nil if there is no such path or method.
func impliedCodes(name string, operation node, status string) (codes []string) {
	for _, rule := range problemRules() {
		if rule.status == status && isOfKind(rule.kind, name, operation) {
			codes = append(codes, rule.codes...)
		}
	}
	return codes
}

// isOfKind reports whether an operation is of a kind that the table in the response Problem names.
func isOfKind(kind, name string, operation node) bool {
	access := fmt.Sprint(at(operation, "x-cairn-access"))
	isOpen := access == string(public) || access == string(refreshCookie) || operation == nil
	var query []node
	parameters, _ := at(operation, "parameters").([]node)
	for _, parameter := range parameters {
		if parameter = follow(parameter); at(parameter, "in") == "query" {
			query = append(query, at(parameter, "name"))
		}
	}

	switch kind {
	case "all":
		return true
	case "all but GET":
		return !strings.HasPrefix(name, "GET ")
	case "with query parameters":
		return len(query) > 0
	case "with the parameter cursor":
		return slices.Contains(query, node("cursor"))
	case "with a parameter in the path":
		return strings.Contains(name, "{")
	case "with a request body":
		return at(operation, "requestBody") != nil
	case "for signed-in callers":
		return !isOpen
	case "for a session":
		return access == string(ownSession)
	case "for a permission":
		return !isOpen && access != string(ownSession) && access != string(signedIn)
	case "none: no such path", "none: no such method":
		return operation == nil
	}
	panic("openapi.yaml: no operations are " + kind)
}

// breach says how an answer departs from the document, or is empty.
func breach(method, path string, a answer) string {
	if method == "HEAD" {
		return ""
	}
	route := documentedRoute(method, path)
	if route == "" && a.status < 400 {
		return "the route is not documented"
	}
	operation := at(document(), "paths", route, strings.ToLower(method))
	status := strconv.Itoa(a.status)
	response := at(operation, "responses", status)
	codes := append(codesIn(response), impliedCodes(method+" "+route, operation, status)...)
	if response == nil && a.status < 400 {
		return fmt.Sprintf("status %d is not documented", a.status)
	}
	if response == nil {
		response = at(document(), "components", "responses", "Problem")
	}
	content := fields(at(response, "content"))
	mediaType, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	if len(content) == 0 && len(a.body) == 0 {
		return ""
	}
	schema := at(content[mediaType], "schema")
	if schema == nil {
		return fmt.Sprintf("with status %d %q is not documented", a.status, mediaType)
	}
	if !strings.HasSuffix(mediaType, "json") {
		return ""
	}
	if a.header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(bytes.NewReader(a.body))
		if err == nil {
			a.body, err = io.ReadAll(unzipped)
		}
		if err != nil {
			return err.Error()
		}
	}
	var value any = a.json
	if a.json == nil { // not an object, or in gzip
		if err := json.Unmarshal(a.body, &value); err != nil {
			return err.Error()
		}
	}
	if code := a.text("code"); mediaType == "application/problem+json" && !slices.Contains(codes, code) {
		return fmt.Sprintf("with status %d the code %s is not documented", a.status, code)
	}
	return mismatch("", value, schema)
}

// mismatch says how a value departs from a schema, or is empty. It knows the part of JSON Schema that openapi.yaml uses.
func mismatch(where string, value any, schema node) string {
	if target, ok := fields(schema)["$ref"].(string); ok {
		schema = at(document(), strings.Split(strings.TrimPrefix(target, "#/"), "/")...)
	}
	s := fields(schema)
	if any, ok := s["anyOf"].([]node); ok {
		said := ""
		for _, one := range any {
			if said = mismatch(where, value, one); said == "" {
				return ""
			}
		}
		return said
	}
	kind, types := "", []node{s["type"]}
	switch v := value.(type) {
	case nil:
		kind = "null"
	case bool:
		kind = "boolean"
	case string:
		kind = "string"
		if enum, ok := s["enum"].([]node); ok && !slices.Contains(enum, node(v)) || s["const"] != nil && s["const"] != node(v) {
			return fmt.Sprintf("%s: %q is not documented", where, v)
		}
	case float64:
		if kind = "number"; v == float64(int64(v)) && s["type"] != "number" {
			kind = "integer"
		}
	case []any:
		kind = "array"
		for i, item := range v {
			if said := mismatch(fmt.Sprintf("%s[%d]", where, i), item, s["items"]); said != "" {
				return said
			}
		}
	case map[string]any:
		kind = "object"
		required, _ := s["required"].([]node)
		for _, name := range required {
			if _, ok := v[fmt.Sprint(name)]; !ok {
				return fmt.Sprintf("%s.%s is missing", where, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			property, ok := fields(s["properties"])[name]
			if !ok {
				property = s["additionalProperties"]
			}
			if property == false {
				return fmt.Sprintf("%s.%s is not documented", where, name)
			}
			if said := mismatch(where+"."+name, v[name], property); said != "" {
				return said
			}
		}
	}
	if list, ok := s["type"].([]node); ok {
		types = list
	}
	if kind == "integer" && slices.Contains(types, node("number")) {
		kind = "number"
	}
	if s["type"] != nil && !slices.Contains(types, node(kind)) {
		return fmt.Sprintf("%s is of the type %s, documented is %v", where, kind, s["type"])
	}
	return ""
}
