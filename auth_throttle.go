package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// throttleRule limits the attempts that one row of the table throttles counts.
type throttleRule struct {
	account, network []byte        // the row's key; one of them may be empty
	free             int           // attempts before the first wait
	first, longest   time.Duration // the first wait; it doubles with each further attempt, up to longest
	forgotten        time.Duration // the count restarts after this long without an attempt
}

// attempt is a guess at a password or code, a registration, or a change of one's own address, which
// is counted like a registration. Its keys are HMACs: the table throttles holds no address and no
// login name.
type attempt struct {
	account, network []byte         // account is empty for a registration
	rules            []throttleRule // in the order of their keys, in which rows are locked
}

// newGuess returns a guess at a password. found is the user with this login name, or nobody. A user
// is counted by id, so that the user name and the e-mail address are one account. After
// lockoutFailures the account is locked out for a day: only attempts from networks that it has
// signed in from are accepted. A new signing key restarts all counts.
func (k key) newGuess(found credentials, login string, address netip.Addr) attempt {
	const day = 24 * time.Hour
	account := k.throttleKey("account", found.ID)
	if found.ID == "" { // normalized as for a user: "Bob" and "bob" share a count, whether or not bob exists
		account = k.throttleKey("name", cmp.Or(normalizeLogin(login), login))
	}
	network, none := k.throttleKey("network", clientNetwork(address).String()), []byte{}
	return attempt{account, network, []throttleRule{
		{account: none, network: network, free: 100, first: time.Second, longest: time.Minute, forgotten: time.Hour},
		{account: account, network: none, free: lockoutFailures, first: day, longest: day, forgotten: day},
		{account: account, network: network, free: 5, first: time.Second, longest: 5 * time.Minute, forgotten: day},
	}}
}

// lockoutFailures is how many failures lock an account out.
const lockoutFailures = 100

// newRegistration returns an attempt to register from the address.
func (k key) newRegistration(address netip.Addr) attempt {
	network, none := k.throttleKey("registrations", clientNetwork(address).String()), []byte{}
	return attempt{none, network, []throttleRule{
		{account: none, network: network, free: 10, first: time.Minute, longest: time.Hour, forgotten: 24 * time.Hour},
	}}
}

// throttleKey returns the HMAC of a name of that kind.
func (k key) throttleKey(kind, name string) []byte {
	return hmacSHA256(k.names, []byte(kind+"\x00"+name))
}

// ofAttempt is SQL for the rows that count an attempt at the account $1 from the network $2.
const ofAttempt = `(account, network) IN (('', $2), ($1, ''), ($1, $2))`

// isKnownNetwork is SQL for: the account $1 has signed in from the network $2.
const isKnownNetwork = `
	EXISTS (SELECT FROM throttles WHERE account = $1 AND network = $2 AND known AND expires_at > now())`

// throttled returns a problem 429 if a rule makes the attempt wait. It writes nothing.
func (a attempt) throttled(ctx context.Context, q querier) error {
	const query = `
		SELECT next_at - now() AS wait
		FROM throttles
		WHERE ` + ofAttempt + ` AND next_at > now() AND NOT (network = '' AND ` + isKnownNetwork + `)
		ORDER BY next_at DESC
		LIMIT 1`
	found, err := collectOne[struct{ Wait time.Duration }](ctx, q, nil, "get wait", query, a.account, a.network)
	if err != nil || found.Wait == 0 {
		return err
	}
	return errThrottled(found.Wait)
}

// errThrottled returns the problem 429 of an attempt that has to wait.
func errThrottled(wait time.Duration) error {
	return &problem{status: http.StatusTooManyRequests, code: "too_many_attempts",
		detail: "Too many attempts. Wait before the next.", retryAfter: wait + time.Second - 1} // rounded up
}

// count counts the attempt under all its rules. If a rule makes it wait, it counts nothing and
// returns a problem 429. Row locks put simultaneous attempts in line, on any number of instances.
// The row of a known network expires when the network stops being known, with its counts.
// The counts need not outlive a crash of the database, so the commit does not wait for the disk.
func (a attempt) count(ctx context.Context, db *pgxpool.Pool) error {
	const query = `
		INSERT INTO throttles AS t (account, network, attempts, expires_at)
		VALUES ($3, $4, 1, date_bin('1 hour', now() + $8::interval + '1 hour', 'epoch'))
		ON CONFLICT (account, network) DO UPDATE
		SET (attempts, next_at) = (
				SELECT n, CASE WHEN n >= $5 THEN now() + least($6::interval * 2 ^ least(n - $5, 20), $7::interval) END
				FROM (SELECT CASE WHEN t.last_at > now() - $8::interval THEN t.attempts ELSE 0 END + 1) AS counted (n)
			),
			last_at = now(),
			known = t.known AND t.expires_at > now(),
			expires_at = CASE WHEN t.known AND t.expires_at > now() THEN t.expires_at ELSE excluded.expires_at END
		WHERE (t.next_at > now()) IS NOT TRUE OR (t.network = '' AND ` + isKnownNetwork + `)`
	errMustWait := errThrottled(time.Second)
	batch := &pgx.Batch{}
	batch.Queue(`SET LOCAL synchronous_commit = off`)
	for _, r := range a.rules {
		queued := batch.Queue(query,
			a.account, a.network, r.account, r.network, r.free, r.first, r.longest, r.forgotten)
		queued.Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				return errMustWait
			}
			return nil
		})
	}
	err := inTransaction(ctx, db, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	if err == errMustWait {
		err = cmp.Or(a.throttled(ctx, db), err) // with the whole wait
	}
	return err
}

// forgive takes back an attempt that was no failure: the count of the network falls by one, and its
// wait ends. After a success the counts of the account alone and of the account in this network
// restart, and the network is known to the account for 90 days. Otherwise the counts of the account
// fall by one too, and their waits end, except a lockout. The statement runs even if the request's
// time limit has ended.
func (a attempt) forgive(ctx context.Context, q querier, isSuccess bool) error {
	const query = `
		UPDATE throttles t
		SET attempts = CASE WHEN $3 AND t.account <> '' THEN 0 ELSE greatest(attempts - 1, 0) END,
			-- A lockout stays if more than $4 failures are counted: then it is not due to this attempt.
			next_at = CASE WHEN NOT $3 AND t.network = '' AND attempts > $4 THEN next_at END,
			known = known OR $3 AND t.account <> '' AND t.network <> '',
			expires_at = CASE
				WHEN $3 AND t.account <> '' AND t.network <> '' THEN date_bin('1 hour', now() + '90 days', 'epoch')
				ELSE expires_at
			END
		FROM (
			SELECT account, network, set_config('synchronous_commit', 'off', true) -- SET LOCAL, as in count
			FROM throttles
			WHERE ` + ofAttempt + `
			ORDER BY account, network
			FOR UPDATE
		) l
		WHERE t.account = l.account AND t.network = l.network`
	ctx, cancel := lastMoment(ctx)
	defer cancel()
	_, err := execute(ctx, q, "forgive attempt", query, a.account, a.network, isSuccess, lockoutFailures)
	return err
}

// forgive is attempt.forgive. If that fails, the attempt stays counted, which is logged.
func (a *accounts) forgive(ctx context.Context, counted attempt, isSuccess bool) {
	if err := counted.forgive(ctx, a.core.db, isSuccess); err != nil {
		a.core.log.Warn("attempt stays counted", "error", err)
	}
}

// forgiveFault returns err. If err is a fault of the server, it takes back the attempt, if any.
func (a *accounts) forgiveFault(ctx context.Context, counted attempt, err error) error {
	if _, isProblem := errors.AsType[*problem](err); err != nil && !isProblem && counted.rules != nil {
		a.forgive(ctx, counted, false)
	}
	return err
}

// resetThrottles restarts all counts of an account, and ends their waits.
func (k key) resetThrottles(ctx context.Context, q querier, userID string) error {
	const query = `
		UPDATE throttles t
		SET attempts = 0, next_at = NULL
		FROM (SELECT account, network FROM throttles WHERE account = $1 ORDER BY account, network FOR UPDATE) l
		WHERE t.account = l.account AND t.network = l.network`
	_, err := execute(ctx, q, "reset throttles", query, k.throttleKey("account", userID))
	return err
}

// hashCounted waits for a place to hash, counts the attempt and runs work, which may hash one
// password. A wrong password or code stays counted, as does the right password of a user who is not
// active. A success restarts the counts, and any other end takes the attempt back. Attempts at one
// account from one network are decided one after the other, so that many right passwords at once do
// not count as many guesses. An attempt that is throttled already does not wait. One that gets no
// place (503) is not counted.
func (a *accounts) hashCounted(ctx context.Context, counted attempt, work func() (isSuccess bool, err error)) error {
	if err := counted.throttled(ctx, a.core.db); err != nil {
		return err
	}
	leaveAccount, err := a.guesses.acquire(ctx, string(counted.account)+string(counted.network))
	if err != nil {
		return err
	}
	defer leaveAccount()
	leaveHasher, err := a.hasher.line.acquire(ctx, "")
	if err != nil {
		return err
	}
	defer leaveHasher()
	if err := counted.count(ctx, a.core.db); err != nil {
		return err
	}
	isSuccess, err := work()
	leaveHasher() // another request can hash while this attempt is forgiven
	isFailure := err == errWrongCredentials || err == errOTPInvalid
	if isSuccess || err != nil && !isFailure {
		a.forgive(ctx, counted, isSuccess)
	}
	return err
}

// hashing returns how many password hashes are being computed, and how many requests hash a
// password or wait to do so.
func (a *accounts) hashing() (running, waiting int) {
	return len(a.hasher.cores), a.hasher.line.length("")
}
