package main

import (
	"cmp"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// field is an input of a form, as the template "field" writes it.
type field struct {
	ID, Name, Label, Type, Value, Error, Hint, Autocomplete string
	Required                                                bool
	Options                                                 []option
}

// option is a choice of a field.
type option struct {
	Value, Label string
	On           bool
}

// Field returns the input of that name in a form; action is the path to which the form is sent.
// After a refusal the input holds what was typed, else value. kind is an input's type, or one of
// the names in the tables below. If it ends in "!", the input is required.
func (p *page) Field(action, name, label, kind, value, hint string) field {
	kind, required := strings.CutSuffix(kind, "!")
	autocomplete := map[string]string{"username": "username", "email": "email", "password": "current-password",
		"new-password": "new-password", "code": "one-time-code"}
	types := map[string]string{"username": "text", "new-password": "password", "code": "text"}
	f := field{ID: fieldID(action + "-" + name), Name: name, Label: label, Type: cmp.Or(types[kind], kind),
		Value: value, Hint: hint, Required: required, Autocomplete: autocomplete[kind]}
	if p.Refusal != nil && p.Action == action {
		f.Error = p.Refusal.Fields[name]
	}
	if p.Action == action && p.Form[name] != nil && f.Type != "password" {
		f.Value = p.Form.Get(name)
	}
	return f
}

// Choice returns a field with options, "value=label" or just "value", of which one is chosen.
func (p *page) Choice(action, name, label, value string, options ...string) field {
	f := p.Field(action, name, label, "select", value, "")
	for _, text := range options {
		value, label, found := strings.Cut(text, "=")
		if !found {
			label = value
		}
		f.Options = append(f.Options, option{value, label, value == f.Value})
	}
	return f
}

// Choices is Choice for a list of options. The first choice is none of them.
func (p *page) Choices(action, name, label, value string, options []string) field {
	return p.Choice(action, name, label, value, append([]string{"=any"}, options...)...)
}

// Boxes returns a field of boxes to tick: all names, of which those in on are ticked.
func (p *page) Boxes(action, name, label string, all, on []string) field {
	f := p.Field(action, name, label, "boxes", "", "")
	for _, text := range all {
		f.Options = append(f.Options, option{text, text, p.On(action, name, text, slices.Contains(on, text))})
	}
	return f
}

// On reports whether a box is ticked: as in the form that was sent to the action, if any, else is.
func (p *page) On(action, name, value string, is bool) bool {
	if p.Form != nil && p.Action == action {
		return slices.Contains(p.Form[name], value)
	}
	return is
}

// addForm adds what was typed in a form. Forms for the same path are told apart by their field
// "code". The path of a preview is that of its form.
func (p *page) addForm(r *http.Request, f url.Values) {
	p.Action, p.Form = strings.TrimSuffix(r.URL.Path, "/preview"), f
	if code := f.Get("code"); code != "" {
		p.Action += "#" + code
	}
}

// notInID matches what fieldID replaces.
var notInID = regexp.MustCompile(`[^A-Za-z0-9]+`)

// fieldID returns the HTML id of an input.
func fieldID(text string) string { return "f" + notInID.ReplaceAllString(text, "-") }
