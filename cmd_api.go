package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// The lines that commands print for a user, and for a role.
const (
	userLine = "$username\t$status\t$roles"
	roleLine = "$name\t$permissions\t$description"
)

// calls returns a command that calls a route of the API, whose path is given below /api/v1. The
// call is made within the program and as the operator: no service has to run. An {id} in the path
// is that of what the command names first, and a {token} that of the API token named next.
//
// fields are the fields of the route, as formBody reads them. The names that the path does not need
// become the first of these fields. Each option becomes the field of its name. A query in route
// gives the fields that have no option. Routes that read or delete take the fields as query
// parameters.
//
// The command prints a line for the answer or, if that is a list, for each item: see printItem. If
// the answer is empty, it prints the line for what the command has named first. With newest in the
// query of the route, it prints only the first page of a list.
func calls(route, fields, line string) action {
	route, defaults, _ := strings.Cut(route, "?")
	method, _, _ := strings.Cut(route, " ")

	return func(ctx context.Context, o invocation) error {
		s, r := o.newCall(ctx)
		named, err := o.setPath(r, route)
		if err != nil {
			return err
		}

		given, _ := url.ParseQuery(defaults) // it is well-formed
		maps.Copy(given, o.options)
		names := o.names[strings.Count(route, "{"):]
		for i, spec := range strings.Fields(fields)[:len(names)] {
			given.Set(strings.TrimRight(spec, fieldKinds), names[i])
		}

		body := formBody(given, fields)
		query := url.Values{}
		if method == http.MethodGet || method == http.MethodDelete {
			for name, value := range body {
				query.Set(name, fmt.Sprint(value))
			}
			body = nil
		}

		path := strings.Replace(route, " ", " /api/v1", 1)
		for {
			answer, err := s.callAPI(r, path, query.Encode(), body)
			if err != nil {
				return err
			}

			// The object may have changed, or be gone.
			if len(answer) == 0 {
				now, err := o.setPath(r, route)
				if err == nil {
					named = now
				}
				answer, _ = encodeJSON(named) // text, numbers and lists: there is no error
			}

			var list listOf[json.RawMessage]
			json.Unmarshal(answer, &list) // the API answers with sound JSON
			if list.Items == nil && line != "" {
				return o.printItem(answer, line)
			}
			for _, item := range list.Items {
				if err := o.printItem(item, line); err != nil {
					return err
				}
			}

			if list.NextCursor == nil || given.Has("newest") {
				return nil
			}
			query.Set("cursor", *list.NextCursor)
		}
	}
}

// newCall returns a server that serves nobody, and a request of the operator within the program.
func (o invocation) newCall(ctx context.Context) (*server, *http.Request) {
	// The key signs only the cursors of lists, which end with the command.
	keys, _ := parseKeys([]byte(newKeyLine())) // the line is well-formed
	tuning := defaultOptions().tuning
	s := newServer(newCore(o.cfg, o.log, o.database, keys, tuning), tuning, nil, nil, nil)

	r := &http.Request{URL: &url.URL{}}
	c := s.newCaller(r)
	c.isOperator = true
	return s, r.WithContext(context.WithValue(ctx, callerKey{}, c))
}

// setPath sets the path values of a route, and returns what the command names first, if that is a
// user, a role or a dataset. Of anything else it takes only an id.
func (o invocation) setPath(r *http.Request, route string) (named any, err error) {
	ctx := r.Context()
	setID := func(id any) { r.SetPathValue("id", fmt.Sprint(id)) }

	switch {
	case strings.Contains(route, "/users/{"):
		u, err := userNamed(ctx, o.db, o.names[0])
		setID(u.ID)
		if err == nil && strings.HasSuffix(route, "/{token}") {
			err = o.setToken(r, u)
		}
		return u, err
	case strings.Contains(route, "/roles/{"):
		found, err := roleNamed(ctx, o.db, "role", o.names[0])
		setID(found.ID)
		return found, err
	case strings.Contains(route, "/datasets/{"):
		d, err := o.getDataset(ctx, o.names[0])
		setID(d.ID)
		return d, err
	case strings.Contains(route, "{"):
		setID(o.names[0])
		if pathID(r, "id") == 0 {
			return nil, fmt.Errorf("%q is not an id; %w", o.names[0], errUsage)
		}
	}
	return nil, nil
}

// setToken sets the path value token to the id of the user's API token that the command names.
func (o invocation) setToken(r *http.Request, u user) error {
	name := o.names[1]
	tokens, err := listAPITokens(r.Context(), o.db, u.ID, "", maxTokens)
	for _, t := range tokens {
		if t.Name == name {
			r.SetPathValue("token", t.ID)
			return nil
		}
	}
	if err == nil {
		err = fmt.Errorf("%s has no API token %q", u.Username, name)
	}
	return err
}

// printItem prints an object of the API as JSON with --json, else as a line of text. In the line,
// $roles is the field roles of the object, and ${created_at:.10} the first ten characters of
// created_at. $0 is what the command names first, and $1 what it names next. What is null is "-".
func (o invocation) printItem(item json.RawMessage, line string) error {
	object := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(item))
	decoder.UseNumber() // an id is written without an exponent
	err := decoder.Decode(&object)
	for i, name := range o.names {
		object[fmt.Sprint(i)] = name
	}

	text := os.Expand(line, func(name string) string {
		name, precision, _ := strings.Cut(name, ":")
		value := fmt.Sprint(cmp.Or(object[name], any("-")))
		if list, ok := object[name].([]any); ok {
			value = strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
		}
		return fmt.Sprintf("%"+precision+"s", value)
	})
	return o.print(err, item, "%s", text)
}
