package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// throttleRule limits the attempts that are counted together: those at an account, from a network, or both.
type throttleRule struct {
	byAccount, byNetwork bool
	free                 int           // attempts that need not wait for the one before
	first                time.Duration // wait after the last free attempt; it doubles with each further one
	longest              time.Duration
	forgotten            time.Duration // the count restarts after this long without an attempt
}

// guessRules returns the rules for guesses at a password, in the order in which they are checked. Past the second
// rule an account is under siege: for a day only networks that it has signed in from are heard.
func guessRules() []throttleRule {
	return []throttleRule{
		{byNetwork: true, free: 100, first: time.Second, longest: time.Minute, forgotten: time.Hour},
		{byAccount: true, free: 100, first: 24 * time.Hour, longest: 24 * time.Hour, forgotten: 24 * time.Hour},
		{byAccount: true, byNetwork: true, free: 5, first: time.Second, longest: 5 * time.Minute, forgotten: 24 * time.Hour},
	}
}

// registrationRules returns the rule for registrations.
func registrationRules() []throttleRule {
	return []throttleRule{{byNetwork: true, free: 10, first: time.Minute, longest: time.Hour, forgotten: 24 * time.Hour}}
}

// attempt is a request that costs us a password hash. Its keys are HMACs: the database holds no address and no login
// name that is no account's.
type attempt struct {
	rules            []throttleRule
	account, network []byte // account is empty for a registration
	known            bool   // the account has signed in from this network; set by check
	leave            func() // lets the next attempt go on: see hashCounted
}

// throttleKey returns the HMAC of a name of that kind.
func (k key) throttleKey(kind, name string) []byte {
	mac := hmac.New(sha256.New, k.names)
	mac.Write([]byte(kind + "\x00" + name))
	return mac.Sum(nil)
}

// newGuess returns a guess at the password of the user that was found under the login name, or of nobody. A user is
// counted by id, so that the user name and the e-mail address are one account.
func (k key) newGuess(found credentials, login string, address netip.Addr) *attempt {
	account := k.throttleKey("account", found.userID)
	if found.userID == "" {
		account = k.throttleKey("name", strings.ToLower(login))
	}
	return &attempt{rules: guessRules(), account: account, network: k.throttleKey("network", clientNetwork(address).String())}
}

// newRegistration returns a registration from the address.
func (k key) newRegistration(address netip.Addr) *attempt {
	return &attempt{rules: registrationRules(), account: []byte{}, network: k.throttleKey("registrations", clientNetwork(address).String())}
}

// clientNetwork returns the part of an address that one client has: an IPv4 address or an IPv6 /64.
func clientNetwork(address netip.Addr) netip.Addr {
	if address.Is6() {
		return netip.PrefixFrom(address, 64).Masked().Addr()
	}
	return address
}

// ofAttempt is SQL for the rows of an attempt whose account is $1 and whose network is $2. All lock them in the
// order of their keys, which is the order of the rules.
const ofAttempt = `(account, network) IN (('', $2), ($1, ''), ($1, $2))`

// check returns a problem 429 if a rule makes the attempt wait. It writes nothing.
func (a *attempt) check(ctx context.Context, q querier) error {
	const query = `
		SELECT
			greatest(next_at - now(), '0') AS wait,
			network = '' AS is_siege,
			known AND expires_at > now() AS known
		FROM throttles
		WHERE ` + ofAttempt + `
		ORDER BY account, network`
	states, err := collect[struct {
		Wait           time.Duration
		IsSiege, Known bool
	}](ctx, q, "check attempt", query, a.account, a.network)
	if err != nil {
		return err
	}
	for _, state := range states {
		a.known = a.known || state.Known
	}
	for _, state := range states {
		if state.Wait > 0 && !(state.IsSiege && a.known) {
			return errThrottled(state.Wait)
		}
	}
	return nil
}

// errThrottled returns the problem 429 of an attempt that has to wait.
func errThrottled(wait time.Duration) error {
	return &problem{status: http.StatusTooManyRequests, code: "too_many_attempts",
		detail: "Too many attempts. Wait before the next.", retryAfter: wait + time.Second - 1}
}

// count counts the attempt under all its rules, or under none and returns a problem 429. Row locks put attempts that
// come at once in line, on any number of instances. The counts need not outlive a crash of the database, so nobody
// waits for its disk.
func (a *attempt) count(ctx context.Context, db *pgxpool.Pool) error {
	const query = `
		INSERT INTO throttles AS t (account, network, attempts, expires_at)
		VALUES ($1, $2, 1, date_bin('1 hour', now() + $6::interval + '1 hour', 'epoch'))
		ON CONFLICT (account, network) DO UPDATE
		SET (attempts, next_at) = (
				SELECT n, CASE WHEN n >= $3 THEN now() + least($4::interval * 2 ^ least(n - $3, 20), $5::interval) END
				FROM (SELECT CASE WHEN t.last_at > now() - $6::interval THEN t.attempts ELSE 0 END + 1) AS counted (n)
			),
			last_at = now(),
			expires_at = greatest(t.expires_at, excluded.expires_at)
		WHERE (t.next_at > now()) IS NOT TRUE OR $7`
	batch := &pgx.Batch{}
	batch.Queue(`SET LOCAL synchronous_commit = off`)
	throttled := false
	for _, r := range a.rules {
		account, network := []byte{}, []byte{}
		if r.byAccount {
			account = a.account
		}
		if r.byNetwork {
			network = a.network
		}
		queued := batch.Queue(query, account, network, r.free, r.first, r.longest, r.forgotten, a.known && !r.byNetwork)
		queued.Exec(func(tag pgconn.CommandTag) error {
			throttled = throttled || tag.RowsAffected() == 0
			return nil
		})
	}
	err := inTransaction(ctx, db, func(tx pgx.Tx) error {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil || !throttled {
			return err
		}
		return errThrottled(time.Second)
	})
	if err != nil && throttled { // by attempts that came since check, which knows for how long
		return cmp.Or(a.check(ctx, db), err)
	}
	return err
}

// forgive takes the attempt back, since it was no failure: the counts of the network fall by one, and those of the
// account restart. The account knows the network for 90 days from now on.
func (a *attempt) forgive(ctx context.Context, q querier) error {
	const query = `
		WITH counted AS (
			SELECT account, network
			FROM throttles
			WHERE ` + ofAttempt + `
			ORDER BY account, network
			FOR UPDATE
		)
		UPDATE throttles t
		SET attempts = CASE WHEN c.account = '' THEN greatest(attempts - 1, 0) ELSE 0 END,
			next_at = NULL,
			known = c.account <> '' AND c.network <> '',
			expires_at = CASE
				WHEN c.account <> '' AND c.network <> '' THEN date_bin('1 hour', now() + '90 days', 'epoch')
				ELSE expires_at
			END
		FROM counted c
		WHERE t.account = c.account AND t.network = c.network`
	_, err := execute(ctx, q, "forgive attempt", query, a.account, a.network)
	return err
}

// forgiveFault returns err. If that is no answer to the attempt but a fault of ours, it forgives the attempt, unless
// the database is away.
func (s *server) forgiveFault(ctx context.Context, a *attempt, err error) error {
	if _, answered := errors.AsType[*problem](err); err != nil && !answered {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if e := a.forgive(ctx, s.db); e != nil {
			s.log.Warn("attempt stays counted though its request failed", "error", e)
		}
	}
	return err
}

// endSiege restarts the counts of an account, from all networks, and ends their waits.
func (k key) endSiege(ctx context.Context, q querier, userID string) error {
	const query = `
		WITH counted AS (
			SELECT account, network
			FROM throttles
			WHERE account = $1 AND attempts > 0
			ORDER BY account, network
			FOR UPDATE
		)
		UPDATE throttles t
		SET attempts = 0, next_at = NULL
		FROM counted c
		WHERE t.account = c.account AND t.network = c.network`
	_, err := execute(ctx, q, "end siege", query, k.throttleKey("account", userID))
	return err
}

// hashCounted runs work, which hashes a password, once a core is free and the attempt is counted. The
// caller calls a.leave when the attempt is decided. Until then further attempts at the same account from
// the same network wait in line, so that many right passwords at once do not count as many guesses. An
// attempt that is throttled does not wait, and one that waits in vain (503) is not counted.
func (s *server) hashCounted(ctx context.Context, a *attempt, work func() error) (err error) {
	if err := a.check(ctx, s.db); err != nil {
		return err
	}
	if a.leave, err = s.guesses.enter(ctx, string(a.account)+string(a.network)); err != nil {
		return err
	}
	err = s.hasher.withCore(ctx, func() error {
		if err := a.count(ctx, s.db); err != nil {
			return err
		}
		return work()
	})
	if err != nil {
		a.leave()
	}
	return err
}
