package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// apiFields returns the fields of the body that the route of a form takes, as openapi.yaml has them, and the fields that
// it must have.
func (f form) apiFields() (known map[string]node, required []node) {
	method, path, _ := strings.Cut(f.to, " ")
	schema := at(document(), "paths", "/api/v1"+path, strings.ToLower(method), "requestBody", "content", "application/json", "schema")
	required, _ = at(schema, "required").([]node)
	return fields(at(schema, "properties")), required
}

// names returns the names of the form's fields.
func (f form) names() (names []string) {
	for spec := range strings.FieldsSeq(f.fields) {
		names = append(names, strings.TrimRight(spec, "?*[]!@{},"))
	}
	return names
}

// TestFormRows: each form has the callers and the largest body of the route that it is sent to, and enough time for that
// route and for its page. That route takes its fields, with values of their kind, and needs no other.
func TestFormRows(t *testing.T) {
	t.Parallel()
	s := &server{}
	rows := map[string]route{}
	for _, rt := range s.routes() {
		rows[rt.method+" "+rt.path] = rt
	}

	for _, f := range forms() {
		t.Run(f.path, func(t *testing.T) {
			own := rows["POST "+f.path]
			target := rows[strings.Replace(f.to, " ", " /api/v1", 1)]
			page := rows["GET "+f.page]
			check(t, "who", own.who, target.who)
			check(t, "largest body", own.maxBody, target.maxBody)
			check(t, "class", own.class, max(target.class, page.class))
			check(t, "has the time of its route", own.class.timeout() >= target.class.timeout(), true)
			check(t, "has the time of its page", own.class.timeout() >= page.class.timeout(), true)

			known, required := f.apiFields()
			for spec := range strings.FieldsSeq(f.fields) {
				name := strings.TrimRight(spec, "?*[]!@{},")
				kind := spec[len(name):]
				if object, field, isInner := strings.Cut(name, "."); isInner {
					inner := at(follow(known[object]), "properties", field)
					check(t, "openapi.yaml has "+name, inner != nil, true)
					continue
				}
				if known[name] == nil {
					t.Errorf("openapi.yaml: %s has no field %s", f.to, name)
					continue
				}
				types := fmt.Sprint(at(known[name], "type"))
				isArray := strings.Contains(types, "array")
				isBoolean := strings.Contains(types, "boolean")
				isNullable := kind == "?" || kind == "@"
				check(t, name+" is a list", kind == "[]", isArray)
				check(t, name+" is a box", kind == "!", isBoolean)
				check(t, name+" may be null", isNullable && !strings.Contains(types, "null"), false)
			}
			for _, name := range required {
				check(t, fmt.Sprint(name, " is on the form"), slices.Contains(f.names(), fmt.Sprint(name)), true)
			}
		})
	}
}

// formNames finds the names of fields inside a form. A pattern that begins with text is found many times faster.
var formNames = regexp.MustCompile(` name="([^"]*)"`)

// keptFields are fields that no route gets: the random text of a form that acts once, and the secret that an app has
// scanned, which the page shows again.
const keptFields = " once tag uri secret "

// checkForms checks that the forms on a page have only fields that their rows name. The forms of login and logout
// have no row in forms.
func (b *browser) checkForms(what, page string) {
	b.t.Helper()
	rows := forms()
	for _, element := range strings.Split(page, "<form ")[1:] {
		tag, rest, _ := strings.Cut(element, ">")
		inside, _, _ := strings.Cut(rest, "</form>")
		if !strings.Contains(tag, `method="post"`) {
			continue
		}

		id, action := attributeOf(tag, "id"), attributeOf(tag, "action")
		i := slices.IndexFunc(rows, func(f form) bool { return isOfPattern(f.path, action) })
		if i < 0 {
			if action != "/login" && action != "/logout" {
				b.t.Errorf("%s: no form has the address %s", what, action)
			}
			continue
		}

		found := formNames.FindAllStringSubmatch(inside, -1)
		if id != "" { // fields outside the form may belong to it
			found = append(found, regexp.MustCompile(` name="([^"]*)"[^>]* form="`+id+`"`).FindAllStringSubmatch(page, -1)...)
		}
		for _, m := range found {
			name := strings.TrimPrefix(m[1], "former_")
			isKept := strings.Contains(keptFields, " "+name+" ")
			isOnce := name == "once" // every form may have it: see readOnce
			if !isKept && !isOnce && !slices.Contains(rows[i].names(), name) {
				b.t.Errorf("%s: the form %s has a field %s, which is not sent", what, action, m[1])
			}
		}
	}
}

// attributeOf returns the value of an attribute of a tag, or "".
func attributeOf(tag, name string) string {
	_, after, _ := strings.Cut(" "+tag, " "+name+`="`)
	value, _, _ := strings.Cut(after, `"`)
	return value
}

// isOfPattern reports whether a path is one of a route's.
func isOfPattern(pattern, path string) bool {
	places := strings.Split(pattern, "/")
	parts := strings.Split(path, "/")
	if len(places) != len(parts) {
		return false
	}
	for i, place := range places {
		isVariable := strings.HasPrefix(place, "{")
		if !isVariable && place != parts[i] {
			return false
		}
	}
	return true
}
