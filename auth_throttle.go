package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// throttleRule limits the attempts that one row of the table throttles counts. An example: 5
// attempts are allowed, the first wait is 1 s, and no wait is longer than 5 min. Then the sixth
// attempt waits until 1 s after the fifth, the seventh until 2 s after the sixth, and so on. From
// the fifteenth on, each waits until 5 min after the one before. A rule allows at least two
// attempts, because the first never sets a wait.
type throttleRule struct {
	subject, network   string        // the row's key (account, network); one may be empty
	allowed            int           // attempts before the first wait
	firstWait, maxWait time.Duration // the first wait; it doubles with each further attempt, up to maxWait
	resetAfter         time.Duration // the count restarts after this long without an attempt

	nextAt *time.Time // a result of count, for undoCount: the end of the wait that this attempt has set; nil: none
}

// attempt is a guess at a password or code, a registration, or a change of one's own account.
type attempt struct {
	rules   []throttleRule // in the order of their keys (account, network), in which rows are locked
	subject string         // of the guess or registration, as in throttleRule
	network string         // of the client
	userID  string         // of the user that a guess is for; empty if there is no such user
}

// newGuess returns a guess at the password or code of the user with this login name. userID is
// empty if there is no such user.
//
// The text that was typed is counted, whether or not a user has that name. "Bob" and "bob" share a
// count; "bob" and "bob@example.org" never do. So a 429 does not tell which names exist, or which
// name and address belong to one account. There is one exception: a network that an account knows.
// There the account's name is not locked out, which tells that the account exists.
//
// The lockout does not apply in a network from which the account has signed in before: there,
// failures neither lead to a lockout nor prolong one.
func (a *accounts) newGuess(ctx context.Context, userID, login string, address netip.Addr) (attempt, error) {
	// A subject is an HMAC of the name, so each key of the ring gives another one. A count that has
	// begun under an older key goes on under it: a new signing key forgives nobody. Both rules that
	// have a subject use the same one. The query takes it from the running count of the lockout, or
	// else from the newest count in this network. If neither runs, the signing key makes it.
	const query = `
		WITH begun AS (
			SELECT account
			FROM throttles
			WHERE account = ANY ($1)
				AND network IN ('', $2)
				AND expires_at > now()
			ORDER BY network, expires_at DESC -- the network of the lockout is '', which comes first
			LIMIT 1
		)
		SELECT
			coalesce((SELECT account FROM begun), '') AS account,
			EXISTS (
				SELECT FROM known_networks
				WHERE user_id = nullif($3, '')::uuid AND network = $2 AND expires_at > now()
			) AS is_known`

	subjects := a.core.keys.Load().loginSubjects(login)
	network := clientNetwork(address).String()
	found, err := collectOne[struct {
		Account string
		IsKnown bool
	}](ctx, a.core.db, nil, "look for counts", query, subjects, network, userID)
	if err != nil {
		return attempt{}, err
	}

	subject := cmp.Or(found.Account, subjects[0])
	const day = 24 * time.Hour
	perNetwork := throttleRule{
		network:    network,
		allowed:    100,
		firstWait:  time.Second,
		maxWait:    time.Minute,
		resetAfter: time.Hour,
	}
	lockout := throttleRule{
		subject:    subject,
		allowed:    100,
		firstWait:  day,
		maxWait:    day,
		resetAfter: day,
	}
	perBoth := throttleRule{
		subject:    subject,
		network:    network,
		allowed:    5,
		firstWait:  time.Second,
		maxWait:    5 * time.Minute,
		resetAfter: day,
	}

	rules := []throttleRule{perNetwork, lockout, perBoth}
	if found.IsKnown {
		rules = []throttleRule{perNetwork, perBoth}
	}
	return attempt{rules: rules, subject: subject, network: network, userID: userID}, nil
}

// newRegistration returns an attempt to register from the address.
func newRegistration(address netip.Addr) attempt {
	t := attempt{subject: "registrations", network: clientNetwork(address).String()}
	t.rules = []throttleRule{{
		subject:    t.subject,
		network:    t.network,
		allowed:    10,
		firstWait:  time.Minute,
		maxWait:    time.Hour,
		resetAfter: 24 * time.Hour,
	}}
	return t
}

// newOwnChange returns a change of one's own account. A new e-mail address counts as a registration
// too, because the answer tells whether another account has that address. An address that is sent
// and stays the same counts as new.
func newOwnChange(userID string, hasNewAddress bool, address netip.Addr) attempt {
	var change attempt
	if hasNewAddress {
		change = newRegistration(address)
	}

	change.rules = append(change.rules, throttleRule{
		subject:    "user:" + userID,
		allowed:    20,
		firstWait:  time.Hour,
		maxWait:    time.Hour,
		resetAfter: time.Hour,
	})
	return change
}

// loginSubjects returns the subjects under which login names are counted: for each name one for
// each key of the ring, the signer's first. Each is an HMAC, because somebody may have typed a
// password as the name, which the table must not reveal.
func (ring *keyring) loginSubjects(logins ...string) (subjects []string) {
	for _, login := range logins {
		name := normalizeLogin(login)
		if name == "" {
			name = login
		}
		for _, k := range ring.keys {
			subjects = append(subjects, "name:"+encodedMAC(k.names, name))
		}
	}
	return subjects
}

// checkWait returns a problem 429 if a rule makes the attempt wait. It writes nothing.
func (t attempt) checkWait(ctx context.Context, q querier) error {
	const query = `
		SELECT coalesce(max(next_at) - now(), '0')
		FROM throttles
		WHERE (account, network) IN (SELECT * FROM unnest($1::text[], $2::text[]))
			AND next_at > now()`

	var subjects, networks []string
	for _, r := range t.rules {
		subjects = append(subjects, r.subject)
		networks = append(networks, r.network)
	}
	wait, err := scalar[time.Duration](ctx, q, "get wait", query, subjects, networks)
	if err != nil || wait == 0 {
		return err
	}
	return errThrottled(wait)
}

// errThrottled returns the problem 429 of an attempt that has to wait.
func errThrottled(wait time.Duration) error {
	return &problem{
		status:     http.StatusTooManyRequests,
		code:       codeTooManyAttempts,
		detail:     "Too many attempts. Wait before the next.",
		retryAfter: wait + time.Second - 1, // the header has whole seconds; this rounds up
	}
}

// count counts the attempt under all its rules. It notes in each rule the wait that the attempt
// has set, in nextAt: copies of t share the rules. If a rule makes the attempt wait, count counts
// nothing and returns a problem 429. Row locks put simultaneous attempts in line, on any number of
// instances. The counts need not outlive a crash of the database, so the commit does not wait for
// the disk.
func (t attempt) count(ctx context.Context, db *pgxpool.Pool) error {
	// Attempt number @allowed sets the first wait, and each later one a wait twice as long. The
	// bound of 20 only keeps the power of two from overflowing. No row is returned during a wait.
	const query = `
		INSERT INTO throttles AS t (account, network, attempts, expires_at)
		VALUES (@subject, @network, 1, now() + @reset_after::interval)
		ON CONFLICT (account, network) DO UPDATE
		SET attempts = CASE WHEN t.expires_at > now() THEN t.attempts + 1 ELSE 1 END,
			next_at = CASE
				WHEN t.expires_at > now() AND t.attempts + 1 >= @allowed THEN now() + least(
					@first_wait::interval * 2 ^ least(t.attempts + 1 - @allowed, 20),
					@max_wait::interval
				)
			END, -- else null
			expires_at = excluded.expires_at
		WHERE t.next_at IS NULL OR t.next_at <= now()
		RETURNING next_at`

	batch := newThrottleBatch()
	for i, r := range t.rules {
		named := pgx.NamedArgs{
			"subject":     r.subject,
			"network":     r.network,
			"allowed":     r.allowed,
			"first_wait":  r.firstWait,
			"max_wait":    r.maxWait,
			"reset_after": r.resetAfter,
		}
		batch.Queue(query, named).QueryRow(func(row pgx.Row) error { return row.Scan(&t.rules[i].nextAt) })
	}

	// Close also returns the error of a function that was given to QueryRow.
	err := inTransaction(ctx, db, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}

	// Ask for the length of the wait. If it has ended meanwhile, the error says one second.
	if err := t.checkWait(ctx, db); err != nil {
		return err
	}
	return errThrottled(time.Second)
}

// newThrottleBatch returns a batch for a transaction whose commit does not wait for the disk.
func newThrottleBatch() *pgx.Batch {
	batch := &pgx.Batch{}
	batch.Queue(`SET LOCAL synchronous_commit = off`)
	return batch
}

// undoCount takes an attempt back from the count of one rule. It ends the wait that the attempt has
// set, and no wait that another one has set since.
func undoCount(batch *pgx.Batch, r throttleRule) {
	const query = `
		UPDATE throttles
		SET attempts = greatest(attempts - 1, 0),
			next_at = nullif(next_at, $3) -- null if both are equal, else next_at
		WHERE account = $1
			AND network = $2`
	batch.Queue(query, r.subject, r.network, r.nextAt)
}

// refund takes an attempt back from all its counts.
func (a *accounts) refund(ctx context.Context, counted attempt) {
	batch := newThrottleBatch()
	for _, r := range counted.rules {
		undoCount(batch, r)
	}
	a.sendThrottles(ctx, batch)
}

// noteSuccess stores that a guess was right. The network, which is the first rule, gets the attempt
// back. The count of the login name restarts, and so does that of the name in this network. The
// account knows the network for 90 days.
func (a *accounts) noteSuccess(ctx context.Context, counted attempt) {
	const restart = `DELETE FROM throttles WHERE account = $1 AND network = $2`
	const remember = `
		INSERT INTO known_networks AS k (user_id, network, expires_at)
		VALUES ($1, $2, now() + interval '90 days')
		ON CONFLICT (user_id, network) DO UPDATE
		SET expires_at = excluded.expires_at
		WHERE k.expires_at < now() + interval '89 days' -- one write a day is enough`

	batch := newThrottleBatch()
	undoCount(batch, counted.rules[0])
	batch.Queue(restart, counted.subject, "")
	batch.Queue(restart, counted.subject, counted.network)
	batch.Queue(remember, counted.userID, counted.network)
	a.sendThrottles(ctx, batch)
}

// sendThrottles runs a batch even if the request's time limit has ended. If it fails, the attempt
// stays counted, which is logged.
func (a *accounts) sendThrottles(ctx context.Context, batch *pgx.Batch) {
	ctx, cancel := lastMoment(ctx)
	defer cancel()
	err := inTransaction(ctx, a.core.db, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	if err != nil {
		a.core.log.Warn("attempt stays counted", "error", err)
	}
}

// refundIfFault takes an attempt back if err is a fault of the server, or if the client has left. A
// refusal (4xx) stays counted. It returns err.
func (a *accounts) refundIfFault(ctx context.Context, counted attempt, err error) error {
	answer := problemIn(err)
	isRefusal := answer != nil && answer.status < http.StatusInternalServerError
	if err != nil && !isRefusal {
		a.refund(ctx, counted)
	}
	return err
}

// resetThrottles restarts the counts of a user's login names and passkeys, and ends their waits, in
// all networks. A passkey is counted under the name that the query builds, as in checkPasskey.
func resetThrottles(ctx context.Context, q querier, ring *keyring, u user) error {
	const list = `
		SELECT array_agg(login)
		FROM (
			SELECT username AS login FROM users WHERE id = $1
			UNION ALL
			SELECT email FROM users WHERE id = $1 AND email IS NOT NULL
			UNION ALL
			SELECT 'passkey:' || encode(credential_id, 'hex') FROM passkeys WHERE user_id = $1
		) logins`
	const query = `
		DELETE FROM throttles
		WHERE (account, network) IN (
			SELECT account, network
			FROM throttles
			WHERE account = ANY ($1)
			ORDER BY account, network
			FOR UPDATE
		)`

	logins, err := scalar[[]string](ctx, q, "list login names", list, u.ID)
	if err != nil {
		return err
	}
	_, err = execute(ctx, q, "reset throttles", query, ring.loginSubjects(logins...))
	return err
}

// The refusals of an attempt to sign in. errOTPRequired and errLoginCodeWrong reveal that the
// password is right. errOwnCodeWrong is the 403 for a wrong code of somebody who is signed in.
var (
	errWrongCredentials = unauthorized(codeInvalidCredentials, "The user name or the password is wrong.")
	errOTPRequired      = unauthorized(codeOTPRequired,
		"Send otp too: the code of your authenticator app, a recovery code, or the answer of a passkey.")
	errLoginCodeWrong = unauthorized(codeOTPInvalid, "The code is wrong, or was used before. Wait for the next one.")
	errPasskeyWrong   = unauthorized(codePasskeyInvalid,
		"The passkey was not accepted. Try again, or sign in with your password.")
	errOwnCodeWrong = forbidden(codeOTPInvalid, errLoginCodeWrong.detail)
	errSignInAgain  = unauthorized(codeSignInAgain,
		"The code came too late, or your account was changed. Sign in again with your password.")
)

// throttledHash waits for a slot to hash, counts the attempt and runs work, which may hash one
// password. The result of work decides what becomes of the count:
//
//   - Success: the counts restart.
//   - A wrong password, code or passkey: the attempt stays counted.
//   - Any other error, such as a missing code or a fault of the server: the attempt is taken back.
//   - Neither success nor error: the attempt stays counted. A registration ends so, and so does the
//     right password of a user who is not active.
//
// While a wait lasts, an attempt is refused at once. One that gets no slot (503) is not counted.
//
// An instance decides the attempts with the same subject and network one after the other. Otherwise
// ten right logins at once would all be counted before the first one is decided, and the last ones
// would have to wait. Instances do so independently: with three of them, three attempts may be
// counted at a time.
func (a *accounts) throttledHash(ctx context.Context, counted attempt, work func() (isSuccess bool, err error)) error {
	if err := counted.checkWait(ctx, a.core.db); err != nil {
		return err
	}

	leaveGuesses, err := a.guesses.acquire(ctx, counted.subject+" "+counted.network)
	if err != nil {
		return err
	}
	defer leaveGuesses()

	leaveHasher, err := a.hasher.queue.acquire(ctx, everybody)
	if err != nil {
		return err
	}
	defer leaveHasher()

	if err := counted.count(ctx, a.core.db); err != nil {
		return err
	}

	isSuccess, err := work()
	leaveHasher() // another request can hash while this attempt is refunded

	isWrongGuess := err == errWrongCredentials || err == errLoginCodeWrong || err == errPasskeyWrong
	isUndecided := err != nil && !isWrongGuess
	if isSuccess {
		a.noteSuccess(ctx, counted)
	} else if isUndecided {
		a.refund(ctx, counted)
	}
	return err
}

// hashLoad returns how many password hashes are being computed, and how many requests hash a
// password or wait to do so.
func (a *accounts) hashLoad() (running, queued int) {
	return len(a.hasher.running), a.hasher.queue.length(everybody)
}
