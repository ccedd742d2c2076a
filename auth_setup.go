package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// nobodyCanSignIn is what the log says where only the operator can help.
const nobodyCanSignIn = "no administrator can sign in; make one with: cairn user create NAME --role admin"

// ensureAdministrator gives a new installation its first administrator: where nobody who is active
// and has the role admin can sign in, it makes the user "admin" without a password and writes a token
// to set one into a file that only the operator can read.
func (s *server) ensureAdministrator(ctx context.Context) error {
	const query = `
		SELECT ` + userColumns + `,
			EXISTS (SELECT FROM password_tokens t WHERE t.user_id = u.id AND t.expires_at > now()) AS token_waits
		FROM users u
		WHERE u.username = 'admin'`
	return changeAccess(ctx, s.db, func(tx pgx.Tx) error {
		exists, err := administratorExists(ctx, tx)
		if err != nil {
			return err
		}
		if exists {
			return s.withdrawFirstAdminToken(ctx, tx)
		}
		found, err := collectOne[struct {
			user
			TokenWaits bool
		}](ctx, tx, errNotFound, "look for the user admin", query)
		u := found.user
		switch {
		case err == errNotFound:
			err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
				u, err = createUser(ctx, tx, serviceActor(), newUser{username: "admin", status: statusActive, roles: []string{adminRole}})
				return err
			})
			if p, ok := errors.AsType[*problem](err); ok { // there was an admin, and the name is retired
				s.log.Warn(nobodyCanSignIn, "error", p.code)
				return nil
			} else if err != nil {
				return err
			}
		case err != nil:
			return err
		case u.Status != statusActive || !slices.Contains(u.Roles, adminRole): // if he had a password too, he could sign in
			s.log.Warn(nobodyCanSignIn)
			return nil
		case found.TokenWaits:
			// It is in the file that the start which made it has written, here or on another machine.
			s.log.Info("the password of the user admin is not set yet: use the token in the file, or make another administrator with: cairn user create NAME --role admin", "file", s.cfg.firstAdminFile())
			return nil
		}
		token, err := createPasswordToken(ctx, tx, u.ID, firstPasswordTTL)
		if err != nil {
			return err
		}
		// The file comes before the commit: a token that is good is always in a file.
		if err := removeIfThere(s.cfg.firstAdminFile()); err != nil {
			return err
		}
		if err := writeNewFile(s.cfg.firstAdminFile(), []byte(token.PasswordToken+"\n")); err != nil {
			return fmt.Errorf("write the first administrator's token: %w", err)
		}
		s.log.Info("made the first administrator; the token to set the password is in a file", "user", "admin", "file", s.cfg.firstAdminFile())
		return nil
	})
}

// firstAdminToken is what the file of the first administrator's token holds; nothing where there is no such file.
func (s *server) firstAdminToken() (string, error) {
	content, err := os.ReadFile(s.cfg.firstAdminFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read the first administrator's token: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// withdrawFirstAdminToken voids the token in the file, which nobody needs any more, and removes the file.
func (s *server) withdrawFirstAdminToken(ctx context.Context, tx pgx.Tx) error {
	const void = `
		DELETE FROM password_tokens
		WHERE token_hash = $1`
	token, err := s.firstAdminToken()
	if err == nil {
		_, err = execute(ctx, tx, "void the first administrator's token", void, hashToken(token))
	}
	if err != nil {
		return err
	}
	return removeIfThere(s.cfg.firstAdminFile())
}

// removeIfThere removes a file that may be gone already.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
