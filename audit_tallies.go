package main

import (
	"context"
	"errors"
	"sync"
)

// tally is a kind of repeated failure. Its fields are those of the audit row for it.
type tally struct {
	action     string
	target     string
	credential string
	address    string
}

// tallies count failures that anyone can cause without end, by kind, until they are flushed.
type tallies struct {
	mu     sync.Mutex
	counts map[tally]int64 // not nil
}

// maxTallies is how many kinds of one action are told apart in a minute. Further ones are counted
// together.
const maxTallies = 100

// add counts n failures of a kind and returns the count of the kind or, beyond maxTallies kinds of
// its action, of the further ones. It includes what flush could not store.
func (c *tallies) add(t tally, n int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()

	kinds := 0
	for known := range c.counts {
		if known.action == t.action {
			kinds++
		}
	}
	if c.counts[t] == 0 && kinds >= maxTallies {
		t = tally{action: t.action}
	}

	c.counts[t] += n
	return c.counts[t]
}

// flush adds a row to the audit log for each kind, and restarts the counts. It is called once a
// minute, and when the service stops. A count that it could not store stays for the next minute.
func (c *tallies) flush(ctx context.Context, q querier) (err error) {
	c.mu.Lock()
	counts := c.counts
	c.counts = map[tally]int64{}
	c.mu.Unlock()

	for t, n := range counts {
		// The first maxRefusals refusals of a credential have rows of their own.
		after := map[string]int64{"attempts": n}
		if t.action == "request.refused" {
			if n <= maxRefusals {
				continue
			}
			after = map[string]int64{"more": n - maxRefusals}
		}

		by := serviceActor()
		by.credential = t.credential
		by.address = t.address
		failed := audit(ctx, q, by, t.action, t.target, nil, after)
		if failed != nil {
			err = errors.Join(err, failed)
			c.add(t, n)
		}
	}
	return err
}

// tallyToken counts the use of an API token that was refused although it is in the database: it has
// expired, or its owner is not active.
func (a *accounts) tallyToken(ctx context.Context, c *caller) error {
	const query = `
		SELECT
			t.id::text,
			u.username
		FROM api_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE t.token_hash = $1`

	type token struct {
		ID       string
		Username string
	}
	t, err := collectOne[token](ctx, a.core.db, nil, "find refused token", query, c.credential.tokenHash)
	if t.ID != "" {
		refused := tally{
			action:     "token.refused",
			target:     "user:" + t.Username,
			credential: "token:" + t.ID,
			address:    c.network(),
		}
		a.failures.add(refused, 1)
	}
	return err
}

// flushTallies stores the failures that were counted since the last time.
func (a *accounts) flushTallies(ctx context.Context) error {
	return a.failures.flush(ctx, a.core.db)
}
