package main

import (
	"context"
	"fmt"
	"net/http"
)

// actor is who does something, as the audit log has it.
type actor struct {
	id         *string // of the user; nil where nobody is signed in
	name       string
	credential string // "session:ID", "token:ID", or "command line"
	address    string
	requestID  string
}

// actorOf is who sent the request.
func actorOf(r *http.Request) actor {
	c := callerOf(r)
	a := actor{address: c.address.String(), requestID: c.requestID}
	if p := c.principal; p != nil {
		a.id, a.name, a.credential = &p.User.ID, p.User.Username, p.Kind+":"+p.CredentialID
	}
	return a
}

// operatorActor is who uses the command line.
func operatorActor() actor { return actor{name: "operator", credential: "command line"} }

// audit adds a row to the audit log, in the transaction of the change that it tells of. target is what
// was changed, "user:NAME" or the like; before and after are what JSON can hold, or nil. No secret and no
// login name that is no account's may be in them.
func audit(ctx context.Context, q querier, by actor, action, target string, before, after any) error {
	const query = `
		INSERT INTO audit_log (actor_id, actor, credential, address, request_id, action, target, before, after)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	if _, err := q.Exec(ctx, query, by.id, by.name, by.credential, by.address, by.requestID, action, target, before, after); err != nil {
		return fmt.Errorf("audit %s: %w", action, err)
	}
	return nil
}
