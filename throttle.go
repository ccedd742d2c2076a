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
)

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

// customer is the address by which one client is counted: of IPv6 the /64, which is what one customer gets.
func customer(address netip.Addr) netip.Addr {
	if address.Is6() {
		return netip.PrefixFrom(address, 64).Masked().Addr()
	}
	return address
}

// countAttempt counts the attempt before anything is done for it or known of the account, in one statement: any
// number at once, on any number of instances, are all counted. One that comes too early (see throttle_wait in
// schema.sql) is a problem 429, and not counted: hammering from one place does not put an account under siege.
func countAttempt(ctx context.Context, q querier, a attempt) error {
	const query = `
		SELECT coalesce( -- which goes no further than to the first that has to wait
			throttle($1, 'pair', '1 day', false),
			throttle($2, 'address', '1 hour', false),
			throttle($3, 'account', '1 day', EXISTS (SELECT FROM throttles WHERE key = $1 AND known)))`
	var wait *time.Duration
	if err := q.QueryRow(ctx, query, a.pair, a.address, a.account).Scan(&wait); err != nil {
		return fmt.Errorf("count attempt: %w", err)
	}
	if wait != nil {
		return &problem{status: http.StatusTooManyRequests, code: "too_many_attempts", detail: "Too many attempts. Wait before the next.", retryAfter: max(*wait, time.Second) + time.Second - 1}
	}
	return nil
}

// forgiveAttempt takes back an attempt that succeeded: the account is free for this address, which is
// known from now on; for the address and the account it was no failure. Failures of others stay.
func forgiveAttempt(ctx context.Context, q querier, a attempt) error {
	const query = `
		WITH pair AS (
			UPDATE throttles
			SET attempts = 0, known = true, expires_at = date_bin('10 minutes', now() + interval '90 days', 'epoch')
			WHERE key = $1
			RETURNING key
		), address AS ( -- locked after the pair, as countAttempt does
			UPDATE throttles t
			SET attempts = greatest(t.attempts - 1, 0)
			FROM pair
			WHERE t.key = $2
			RETURNING t.key
		)
		UPDATE throttles t
		SET attempts = greatest(t.attempts - 1, 0)
		FROM address
		WHERE t.key = $3`
	_, err := execute(ctx, q, "forgive attempt", query, a.pair, a.address, a.account)
	return err
}
