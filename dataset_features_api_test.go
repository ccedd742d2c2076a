package main

import (
	"fmt"
	"html"
	"maps"
	"slices"
	"strings"
)

// resolved returns a part of the definition in OpenAPI or, for a reference, the part that it names.
func (f featuresTree) resolved(part map[string]any) map[string]any {
	f.t.Helper()
	target, isReference := part["$ref"].(string)
	if !isReference {
		return part
	}
	at := f.api
	for name := range strings.SplitSeq(strings.TrimPrefix(target, "#/"), "/") {
		at, _ = at[name].(map[string]any)
	}
	if at == nil {
		f.t.Fatalf("%s is not in the definition", target)
	}
	return at
}

// operation is one of the definition, with a path of it.
type operation struct {
	method     string
	template   string
	path       string // below the landing page
	body       any
	parameters []map[string]any
	responses  map[string]any
}

// operations returns the operations of the definition. Their paths name a collection and a feature that are there.
func (f featuresTree) operations() (operations []operation) {
	f.t.Helper()
	features := f.all("/collections/1/items")
	names := strings.NewReplacer("{collectionId}", "1", "{featureId}", fmt.Sprint(features[0]["id"]))
	paths, _ := f.api["paths"].(map[string]any)
	for _, template := range slices.Sorted(maps.Keys(paths)) {
		for method, definition := range paths[template].(map[string]any) {
			o := operation{method: strings.ToUpper(method), template: template, path: names.Replace(template)}
			if method == "post" {
				o.body = map[string]any{}
			}
			definition, _ := definition.(map[string]any)
			for _, p := range objects(definition, "parameters") {
				o.parameters = append(o.parameters, f.resolved(p))
			}
			o.responses, _ = definition["responses"].(map[string]any)
			operations = append(operations, o)
		}
	}
	check(f.t, "operations", len(operations), 8)
	return operations
}

// api-definition-op: the definition is where the landing page says.
func (f featuresTree) apiDefinitionOp() {
	page := f.get("/")
	for _, path := range append(f.linked(page, "service-desc"), f.linked(page, "service-doc")...) {
		f.c.must(200, "GET", stacPath+path, nil)
	}
	f.apiDefinitionSuccess()
}

// api-definition-success: the definition has what OpenAPI 3.0 demands: a title, a version, and operations. Each has
// responses with descriptions and, for each part of its path in braces, a parameter.
func (f featuresTree) apiDefinitionSuccess() {
	api := f.api
	check(f.t, "OpenAPI", strings.HasPrefix(fmt.Sprint(api["openapi"]), "3.0."), true)
	info, _ := api["info"].(map[string]any)
	check(f.t, "title and version are there", info["title"] != nil && info["version"] != nil, true)

	for _, o := range f.operations() {
		inPath := 0
		for _, p := range o.parameters {
			if p["in"] == "path" {
				inPath++
				check(f.t, o.template+" has "+fmt.Sprint(p["name"]), strings.Contains(o.template, fmt.Sprint("{", p["name"], "}")), true)
				check(f.t, o.template+": it is required", p["required"], any(true))
			}
			check(f.t, fmt.Sprint(o.template, ": ", p, " has a schema"), p["schema"] != nil, true)
		}
		check(f.t, o.template+": parameters in the path", inPath, strings.Count(o.template, "{"))
		check(f.t, o.template+" has responses", len(o.responses) > 0, true)
		for status, response := range o.responses {
			description := f.resolved(response.(map[string]any))["description"]
			check(f.t, o.template+": "+status+" has a description", description != nil, true)
		}
	}
}

// checkDescribed checks that the definition has the status and the media type of an answer.
func (f featuresTree) checkDescribed(o operation, a answer) {
	f.t.Helper()
	response, ok := o.responses[fmt.Sprint(a.status)]
	if !ok {
		response = o.responses["default"]
	}
	part, _ := response.(map[string]any)
	content, _ := f.resolved(part)["content"].(map[string]any)
	mediaType := a.header.Get("Content-Type")
	check(f.t, fmt.Sprint(o.method, " ", o.template, ": ", a.status, " as ", mediaType, " is described"), content[mediaType] != nil, true)
}

// completeness: the definition has the status and the media type of every answer that is no error.
func (f featuresTree) completeness() {
	for _, o := range f.operations() {
		f.checkDescribed(o, f.c.must(200, o.method, stacPath+o.path, o.body))
	}
}

// exceptions-codes: the definition has the status and the media type of every error.
func (f featuresTree) exceptionsCodes() {
	nobody, unable := f.c.as(""), f.c.as(f.unable)
	for _, o := range f.operations() {
		path := stacPath + o.path
		f.checkDescribed(o, nobody.must(401, o.method, path, o.body))
		f.checkDescribed(o, unable.must(403, o.method, path, o.body))
		f.checkDescribed(o, f.c.must(400, o.method, path+"?unknown=1", o.body))
		if o.path != o.template {
			missing := strings.Replace(path, "/1", "/999", 1)
			f.checkDescribed(o, f.c.must(404, o.method, missing, o.body))
		}
		if o.body != nil {
			f.checkDescribed(o, f.c.must(400, o.method, path, "no JSON"))
			f.checkDescribed(o, f.c.must(413, o.method, path, strings.Repeat(" ", 2<<20)+"{}"))
			f.checkDescribed(o, f.c.must(415, o.method, path, o.body, "Content-Type: text/plain"))
		}
	}
}

// oas-definition-1: the definition is there in JSON and in HTML, which has the same operations and parameters.
func (f featuresTree) oasDefinition1() {
	types := map[string]any{}
	for _, link := range objects(f.get("/"), "links") {
		types[fmt.Sprint(link["rel"])] = link["type"]
	}
	inJSON := f.c.must(200, "GET", stacPath+"/api", nil)
	check(f.t, "type of service-desc", types["service-desc"], any("application/vnd.oai.openapi+json;version=3.0"))
	check(f.t, "type in JSON", inJSON.header.Get("Content-Type"), "application/vnd.oai.openapi+json;version=3.0")
	inHTML := f.c.must(200, "GET", stacPath+"/api.html", nil)
	check(f.t, "type of service-doc", types["service-doc"], any("text/html"))
	check(f.t, "type in HTML", inHTML.header.Get("Content-Type"), "text/html")

	page := html.UnescapeString(string(inHTML.body))
	for _, o := range f.operations() {
		checkHas(f.t, "the page", page, strings.ToLower(o.method)+" "+o.template)
		for _, p := range o.parameters {
			checkHas(f.t, "the page", page, fmt.Sprint(p["name"]))
			checkHas(f.t, "the page", page, fmt.Sprint(p["description"]))
		}
	}
}

// oas-definition-2: the definition in JSON is one of OpenAPI 3.0. TestPeerRedocly holds it against the whole of OpenAPI.
func (f featuresTree) oasDefinition2() { f.apiDefinitionSuccess() }

// oas-impl: every path of the definition, on each of its servers, does what the definition says, with each of its
// parameters.
func (f featuresTree) oasImpl() {
	values := map[string]string{
		"limit": "1", "offset": "0", "bbox": "-1,-1,1,1", "datetime": "../2030-01-01T00:00:00Z", "ids": "1", "collections": "1",
		"intersects": `%7B"type":"Point","coordinates":%5B0,0%5D%7D`, "point": "0,0", "status": "ok", "warnings": "1", "sortby": "id",
		"resolution_min": "1", "resolution_max": "1", "size_min": "1", "size_max": "1",
		"surveyed_from": "2024-01-01", "surveyed_until": "2024-01-01", "f": "json",
	}
	for _, server := range objects(f.api, "servers") {
		for _, o := range f.operations() {
			path := fmt.Sprint(server["url"], o.path)
			f.c.must(200, o.method, path, o.body)
			for _, p := range o.parameters {
				name := fmt.Sprint(p["name"])
				if value, ok := values[name]; p["in"] == "query" && name != "cursor" {
					if !ok {
						value = "any"
					}
					f.c.must(200, o.method, path+"?"+name+"="+value, o.body)
				}
			}
		}
	}
	check(f.t, "servers", len(objects(f.api, "servers")), 1)
}

// security: the definition has every way to sign in, and each of them works.
func (f featuresTree) security() {
	api := f.api
	schemes, _ := api["components"].(map[string]any)["securitySchemes"].(map[string]any)
	check(f.t, "ways to sign in", fmt.Sprint(slices.Sorted(maps.Keys(schemes))), fmt.Sprint(slices.Sorted(maps.Keys(f.ways))))

	for _, requirement := range objects(api, "security") {
		for name := range requirement {
			for _, o := range f.operations() {
				if o.method == "GET" || name != "cookie" {
					f.c.as("").must(200, o.method, stacPath+o.path, o.body, f.ways[name])
				}
			}
		}
	}
	check(f.t, "ways that are enough", len(objects(api, "security")), len(schemes))
}
