package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// nobodyCanSignIn is the log message if only the operator can create an administrator.
const nobodyCanSignIn = "no administrator can sign in; make one with: cairn user create NAME --role admin"

// ensureAdministrator gives a new installation its first administrator: the user "admin" without a
// password. A token that sets the password is written to a file that only the operator can read. At
// later starts, it does one of these:
//
//   - If an administrator can sign in, it voids the token and removes its file.
//   - If the token is still valid, it logs in which file the token is.
//   - If the token has expired, it writes a new one.
//   - If the user "admin" is disabled, has lost the role or is gone, it logs nobodyCanSignIn.
func (a *accounts) ensureAdministrator(ctx context.Context) error {
	const query = `
		SELECT ` + userColumns + `,
			EXISTS (SELECT FROM password_tokens t WHERE t.user_id = u.id AND t.expires_at > now()) AS token_waits
		FROM users u
		WHERE u.username = 'admin'`

	file := a.core.cfg.firstAdminFile()
	isWritten := false
	isObsolete := false
	err := a.queueAccessChange(ctx, func(tx pgx.Tx) error {
		exists, err := administratorExists(ctx, tx)
		if err != nil {
			return err
		}
		if exists {
			isObsolete = true
			return a.voidFirstAdminToken(ctx, tx)
		}

		found, err := collectOne[struct {
			user
			TokenWaits bool
		}](ctx, tx, nil, "look for the user admin", query)
		if err != nil {
			return err
		}

		u := found.user
		isNew := u.ID == ""
		switch {
		case isNew:
			n := newUser{username: "admin", status: statusActive, roles: []string{adminRole}}
			u, err = createUser(ctx, tx, serviceActor(), n)
			if err != nil {
				return err
			}
		case u.Status != statusActive || !slices.Contains(u.Roles, adminRole):
			a.core.log.Warn(nobodyCanSignIn)
			return nil
		case found.TokenWaits:
			a.logWaitingToken(file)
			return nil
		}

		// The creation of a user is in the audit log already.
		if !isNew {
			if err := audit(ctx, tx, serviceActor(), "user.password_reset", "user:admin", nil, nil); err != nil {
				return err
			}
		}
		isWritten = true
		return a.writeFirstAdminToken(ctx, tx, u.ID)
	})

	if err == nil && isWritten {
		a.core.log.Info("the user admin has no password yet: set one with the token in the file",
			"file", file, "page", a.core.cfg.baseURL+"/set-password")
	}

	// The file is removed after the commit. If Cairn ends between the two, a file with a void token
	// is left, never a valid token without its file.
	if err == nil && isObsolete {
		return removeIfThere(file)
	}

	// The name is retired: admin was deleted or renamed.
	if refusal := problemIn(err); refusal != nil && refusal.code == codeUsernameTaken {
		a.core.log.Warn(nobodyCanSignIn, "error", refusal.code)
		return nil
	}

	return err
}

// writeFirstAdminToken creates a password token for the first administrator and writes it into the
// file. It does so before the commit, so that a valid token is always in a file.
func (a *accounts) writeFirstAdminToken(ctx context.Context, tx pgx.Tx, userID string) error {
	file := a.core.cfg.firstAdminFile()
	token, err := createPasswordToken(ctx, tx, userID, firstPasswordTTL)
	if err != nil {
		return err
	}

	if err := removeIfThere(file); err != nil {
		return err
	}
	return writeNewFile(file, []byte(token.PasswordToken+"\n"))
}

// logWaitingToken logs that an earlier start wrote the token into a file, perhaps on another
// machine. It names the file if this machine has it.
func (a *accounts) logWaitingToken(file string) {
	where := slog.Attr{} // not logged
	if _, err := os.Lstat(file); err == nil {
		where = slog.String("file", file)
	}
	a.core.log.Info("the user admin has no password yet: use the token in the file of the first start, "+
		"or make another administrator with: cairn user create NAME --role admin", where)
}

// voidFirstAdminToken voids the token in the first administrator's file, if there is one. If only
// another machine has the file, the token stays until that machine starts Cairn again, or until it
// expires. Only the operator there can read it.
func (a *accounts) voidFirstAdminToken(ctx context.Context, tx pgx.Tx) error {
	const void = `DELETE FROM password_tokens WHERE token_hash = $1`

	token, err := os.ReadFile(a.core.cfg.firstAdminFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the first administrator's token: %w", err)
	}

	hash := hashToken(strings.TrimSpace(string(token)))
	_, err = execute(ctx, tx, "void the first administrator's token", void, hash)
	return err
}

// noteInstance renews the lease of this instance, with the fingerprints of its keys. It returns an
// error unless this instance and all other living ones know each other's signing key: otherwise one
// would refuse the tokens of another.
func noteInstance(ctx context.Context, db *pgxpool.Pool, id string, ring *keyring, life time.Duration) error {
	const others = `
		SELECT DISTINCT ON (id)
			signer,
			fingerprints
		FROM instances
		WHERE id <> $1
			AND live_until > now()
		ORDER BY id, seen_at DESC`
	const note = `
		INSERT INTO instances AS i (
			id,
			signer,
			fingerprints,
			seen_at,
			alive_since,
			live_until
		)
		VALUES (
			$1,
			$2,
			$3,
			now(),
			now(),
			now() + $4::interval
		)
		ON CONFLICT (id, signer) DO UPDATE
		SET fingerprints = excluded.fingerprints,
			seen_at = now(),
			live_until = excluded.live_until,
			alive_since = CASE WHEN i.live_until < now() THEN now() ELSE i.alive_since END`

	ours := ring.fingerprints()
	return underLock(ctx, db, lockKeys, func(tx pgx.Tx) error {
		living, err := collect[struct {
			Signer       string
			Fingerprints []string
		}](ctx, tx, "read instances", others, id)
		if err != nil {
			return err
		}

		for _, other := range living {
			if !slices.Contains(other.Fingerprints, ours[0]) {
				return fmt.Errorf("compare keys: the signing key %s is not known to another instance that runs: "+
					"add it there first (cairn keys add, then promote)", ring.signer().id)
			}

			if !slices.Contains(ours, other.Signer) {
				return errors.New("compare keys: another running instance signs with a key that is unknown here: " +
					"copy its key file")
			}
		}

		_, err = execute(ctx, tx, "note instance", note, id, ours[0], ours, life)
		return err
	})
}

// endRestored is the part of a psql script that ends what a backup may bring back: all sessions and
// password tokens and, unless the variable keep_tokens is true, API tokens and recovery codes. They
// may have been ended or used after the backup was made. Passwords, passkeys and the secrets of
// apps come back as they were then, so that people can sign in. A backup of version 0.2.0 has no
// second factors.
const endRestored = `
	UPDATE sessions
	SET ended_at = now(),
		end_reason = 'restored'
	WHERE ended_at IS NULL;
	DELETE FROM password_tokens;
	DELETE FROM api_tokens
	WHERE NOT :keep_tokens;

	SELECT to_regclass('totp_secrets') IS NOT NULL AND NOT :keep_tokens AS void_codes \gset
	\if :void_codes
		UPDATE totp_secrets
		SET recovery_hashes = '{}';
	\endif
`
