package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// siegeAttempts is after how many failures on an account only addresses it has signed in from are
// heard, until a day has passed since the last that was.
const siegeAttempts = 100

// attempt is one guess at a password, counted under three keys. The keys are HMACs: the database holds
// neither an address nor a login name that is no account's.
type attempt struct {
	pair, address, account []byte
}

// newAttempt is a guess at the account's password from the address.
func (k key) newAttempt(account string, address netip.Addr) attempt {
	address = customer(address)
	sum := func(parts ...string) []byte {
		mac := hmac.New(sha256.New, k.names)
		for _, part := range parts {
			fmt.Fprintf(mac, "%d:%s", len(part), part)
		}
		return mac.Sum(nil)
	}
	account = strings.ToLower(account)
	return attempt{
		pair:    sum("pair", account, address.String()),
		address: sum("address", address.String()),
		account: sum("account", account),
	}
}

// customer is the address by which one client is counted: of IPv6 the /64, which is what one customer
// gets.
func customer(address netip.Addr) netip.Addr {
	if address.Is6() {
		return netip.PrefixFrom(address, 64).Masked().Addr()
	}
	return address
}

// countAttempt counts the attempt before anything is done for it or known of the account, in one
// statement: any number at once, on any number of instances, are all counted. One that comes too early
// is a problem 429, and is not counted again: hammering from one place does not put an account under
// siege. How long the delays are is in schema.sql, with throttle_delay.
func countAttempt(ctx context.Context, q querier, a attempt) error {
	const query = `
		WITH pair AS (
			INSERT INTO throttles AS t (key, kind, expires_at)
			VALUES ($1, 'pair', now() + interval '1 day')
			ON CONFLICT (key) DO UPDATE
			SET allowed = throttle_ready(t.kind, t.attempts, t.last_at),
				attempts = t.attempts + (throttle_ready(t.kind, t.attempts, t.last_at))::int,
				last_at = CASE WHEN throttle_ready(t.kind, t.attempts, t.last_at) THEN now() ELSE t.last_at END,
				expires_at = greatest(t.expires_at, excluded.expires_at)
			RETURNING allowed, known, last_at + throttle_delay(kind, attempts) - now() AS wait
		),
		address AS (
			INSERT INTO throttles AS t (key, kind, expires_at)
			SELECT $2, 'address', now() + interval '1 hour'
			FROM pair
			WHERE allowed
			ON CONFLICT (key) DO UPDATE
			SET allowed = throttle_ready(t.kind, t.attempts, t.last_at),
				attempts = t.attempts + (throttle_ready(t.kind, t.attempts, t.last_at))::int,
				last_at = CASE WHEN throttle_ready(t.kind, t.attempts, t.last_at) THEN now() ELSE t.last_at END,
				expires_at = greatest(t.expires_at, excluded.expires_at)
			RETURNING allowed, last_at + throttle_delay(kind, attempts) - now() AS wait
		),
		account AS (
			INSERT INTO throttles AS t (key, kind, expires_at)
			SELECT $3, 'account', now() + interval '1 day'
			FROM pair, address
			WHERE pair.allowed AND address.allowed
			ON CONFLICT (key) DO UPDATE
			SET allowed = t.attempts < $4 OR (SELECT known FROM pair),
				attempts = t.attempts + (t.attempts < $4 OR (SELECT known FROM pair))::int,
				expires_at = CASE WHEN t.attempts < $4 OR (SELECT known FROM pair) THEN excluded.expires_at ELSE t.expires_at END
			RETURNING allowed, expires_at - now() AS wait
		)
		SELECT
			pair.allowed AND coalesce(address.allowed, false) AND coalesce(account.allowed, false),
			CASE
				WHEN NOT pair.allowed THEN pair.wait
				WHEN NOT address.allowed THEN address.wait
				ELSE account.wait
			END
		FROM pair
		LEFT JOIN address ON true
		LEFT JOIN account ON true`
	var allowed bool
	var wait time.Duration
	if err := q.QueryRow(ctx, query, a.pair, a.address, a.account, siegeAttempts).Scan(&allowed, &wait); err != nil {
		return fmt.Errorf("count attempt: %w", err)
	}
	if !allowed {
		return &problem{status: http.StatusTooManyRequests, code: "too_many_attempts", detail: "Too many attempts. Wait before the next.", retryAfter: max(wait, time.Second) + time.Second - 1}
	}
	return nil
}

// forgiveAttempt takes back an attempt that succeeded: the account is free for this address, which is
// known from now on; for the address and the account it was no failure. Failures of others stay.
func forgiveAttempt(ctx context.Context, tx pgx.Tx, a attempt) error {
	const query = `
		UPDATE throttles
		SET attempts = CASE WHEN kind = 'pair' THEN 0 ELSE greatest(attempts - 1, 0) END,
			known = (kind = 'pair'),
			expires_at = CASE WHEN kind = 'pair' THEN now() + interval '90 days' ELSE expires_at END
		WHERE key = $1`
	for _, key := range [][]byte{a.pair, a.address, a.account} { // the order in which countAttempt locks them
		if _, err := execute(ctx, tx, "forgive attempt", query, key); err != nil {
			return err
		}
	}
	return nil
}
