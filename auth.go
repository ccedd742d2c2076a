package main

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// register answers POST /api/v1/auth/register.
func (s *server) register(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Username    string  `json:"username"`
		Password    string  `json:"password"`
		Email       *string `json:"email"`
		DisplayName string  `json:"display_name"`
	}
	if s.cfg.registration == registrationClosed {
		return &problem{status: http.StatusForbidden, code: "registration_closed", detail: "Accounts are made by an administrator here."}
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	n := newUser{displayName: in.DisplayName, status: statusActive, roles: []string{memberRole}}
	if s.cfg.registration == registrationApproval {
		n.status = statusPending
	}
	var v invalid
	n.username, n.email = checkIdentity(&v, in.Username, in.Email, in.DisplayName)
	v.check(n.username != "admin", "username", "reserved", "is the name of the first administrator")
	checkPassword(&v, "password", in.Password, s.cfg.passwordMin, n.username, n.email, n.displayName)
	if err := v.err(); err != nil {
		return err
	}
	ctx := r.Context()
	counted := s.keys.Load().keys[0].newRegistration(callerOf(r).address)
	var hash string
	err := s.hashCounted(ctx, counted, func() error {
		hash = s.hasher.newHash(in.Password)
		return nil
	})
	if err != nil {
		return err
	}
	defer counted.leave()
	n.passwordHash = &hash
	var created user
	err = changeAccess(ctx, s.db, func(tx pgx.Tx) (err error) {
		if created, err = insertUser(ctx, tx, n); err != nil {
			return err
		}
		return audit(ctx, tx, actorOf(r), "user.register", "user:"+created.Username, nil, created)
	})
	if err != nil {
		return s.forgiveFault(ctx, counted, err)
	}
	return writeJSON(w, http.StatusCreated, created)
}

// login answers POST /api/v1/auth/login. An unknown user, one without a password and a wrong password take the same
// time and get the same answer; that an account is disabled or pending is told only to who knows its password.
func (s *server) login(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	ctx, by := r.Context(), actorOf(r)
	found, guess, right, err := s.checkCredentials(r, in.Username, in.Password)
	if err != nil {
		return err
	}
	defer guess.leave()
	refused := &problem{status: http.StatusUnauthorized, code: "invalid_credentials", detail: "The user name or the password is wrong."}
	switch {
	case !right:
	case found.status == statusPending:
		refused = &problem{status: http.StatusForbidden, code: "account_pending", detail: "The account waits for an administrator's approval."}
	case found.status != statusActive:
		refused = &problem{status: http.StatusForbidden, code: "account_disabled", detail: "The account is disabled."}
	default:
		var sess session
		var u user
		err := inTransaction(ctx, s.db, func(tx pgx.Tx) error {
			sess, err = createSession(ctx, tx, found.userID, found.version, device(r), callerOf(r).address.String(), s.cfg)
			if err == nil { // by a statement of its own, which sees what createSession waited for
				u, err = getUser(ctx, tx, found.userID)
			}
			if err != nil {
				return err
			}
			by.id, by.name, by.credential = &u.ID, u.Username, "session:"+uuidText(sess.SessionID)
			if err := audit(ctx, tx, by, "session.login", "user:"+u.Username, nil, nil); err != nil {
				return err
			}
			return guess.forgive(ctx, tx)
		})
		if err == nil {
			s.rehash(ctx, r, found, in.Password)
			return s.writeTokens(w, u, sess)
		}
		if !errors.Is(err, errToken) {
			return s.forgiveFault(ctx, guess, err)
		}
		// The password or the status changed while we hashed: refused as a wrong one is.
	}
	target := ""
	if found.username != "" {
		target = "user:" + found.username
	}
	if err := audit(ctx, s.db, by, "session.login_refused", target, nil, map[string]string{"code": refused.code}); err != nil {
		return err
	}
	return refused
}

// device is what the client says it is, made printable and short.
func device(r *http.Request) string {
	text := strings.Join(regexp.MustCompile(`[ -~]+`).FindAllString(r.UserAgent(), -1), "")
	return text[:min(len(text), 200)]
}

// writeTokens answers with an access token and sets the cookie with the refresh token.
func (s *server) writeTokens(w http.ResponseWriter, u user, sess session) error {
	now := s.now()
	expires := now.Add(s.cfg.accessTTL)
	if sess.SessionExpiresAt.Before(expires) {
		expires = sess.SessionExpiresAt
	}
	keys := s.keys.Load()
	token, err := keys.signAccess(u.ID, uuidText(sess.SessionID), now, expires)
	if err != nil {
		return err
	}
	http.SetCookie(w, s.cookie(keys.keys[0].signRefresh(sess.SessionID, sess.Generation), max(1, int(sess.SessionExpiresAt.Sub(now).Round(time.Second)/time.Second))))
	return writeJSON(w, http.StatusOK, struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int64  `json:"expires_in"` // seconds
		User        user   `json:"user"`
	}{token, "Bearer", expires.Unix() - now.Unix(), u})
}

// cookie is the refresh cookie. The prefix __Host- makes browsers insist on Secure, Path=/ and no Domain (RFC
// 6265bis, section 4.1.3.2), so no neighbouring host can plant one. maxAge is in seconds; negative clears it.
func (s *server) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name:     s.cookieName(),
		Value:    value,
		Path:     "/",
		MaxAge:   maxAge,
		Secure:   !s.cfg.cookieInsecure,
		HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	}
}

// cookieName is the one name under which a refresh cookie is written and read.
func (s *server) cookieName() string {
	if s.cfg.cookieInsecure {
		return "cairn_refresh"
	}
	return "__Host-cairn_refresh"
}

// refresh answers POST /api/v1/auth/refresh: the cookie's token is exchanged for the next one. Each
// is good once. Shown a second time it is either a lost answer or a parallel tab, which for a short
// time get the same successor, or it is theft, which ends the session for thief and owner.
func (s *server) refresh(w http.ResponseWriter, r *http.Request) error {
	cookie, err := r.Cookie(s.cookieName())
	if err != nil {
		return &problem{status: http.StatusUnauthorized, code: "refresh_token_missing", detail: "There is no refresh cookie."}
	}
	id, generation, err := s.keys.Load().verifyRefresh(cookie.Value)
	if err != nil {
		// Not cleared: it may be good where the right key file is.
		return &problem{status: http.StatusUnauthorized, code: "refresh_token_invalid", detail: "The refresh cookie is not one of ours."}
	}
	sess, u, err := rotateSession(r.Context(), s.db, id, generation, actorOf(r), s.cfg)
	if err == nil {
		return s.writeTokens(w, u, sess)
	}
	if p, ok := errors.AsType[*problem](err); ok && p.status == http.StatusUnauthorized {
		http.SetCookie(w, s.cookie("", -1)) // the session is over
	}
	return err
}

// logout answers POST /api/v1/auth/logout: it ends the sessions that the cookie and the access token
// name. A cookie of any generation will do: who holds an old one may end the session too.
func (s *server) logout(w http.ResponseWriter, r *http.Request) error {
	ids := []string{}
	for _, cookie := range r.CookiesNamed(s.cookieName()) {
		if id, _, err := s.keys.Load().verifyRefresh(cookie.Value); err == nil {
			ids = append(ids, uuidText(id))
		}
	}
	if token, ok := bearerToken(r); ok {
		if claims, err := s.keys.Load().verifyAccess(token, s.now()); err == nil {
			ids = append(ids, claims.SessionID)
		}
	}
	if len(ids) > 0 {
		err := inTransaction(r.Context(), s.db, func(tx pgx.Tx) error {
			_, err := endSessions(r.Context(), tx, actorOf(r), "session.logout", ids, "")
			return err
		})
		if err != nil {
			return err
		}
	}
	http.SetCookie(w, s.cookie("", -1))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// getMe answers GET /api/v1/auth/me.
func (s *server) getMe(w http.ResponseWriter, r *http.Request) error {
	type shownCredential struct {
		Kind      string    `json:"kind"`
		ID        string    `json:"id"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	p := principalOf(r)
	return writeJSON(w, http.StatusOK, struct {
		user
		Permissions []string        `json:"permissions"`
		Credential  shownCredential `json:"credential"`
	}{p.User, p.Permissions, shownCredential{p.Kind, p.CredentialID, p.ExpiresAt}})
}

// updateMe answers PATCH /api/v1/auth/me: one's own display name; and e-mail address, which is a way to
// log in, and so asks for the password.
func (s *server) updateMe(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		DisplayName     *string `json:"display_name"`
		Email           *string `json:"email"`
		CurrentPassword string  `json:"current_password"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	me := principalOf(r).User
	c := userChange{Email: in.Email, DisplayName: in.DisplayName}
	if err := c.check(); err != nil {
		return err
	}
	if c.Email != nil {
		if _, err := s.confirmPassword(r, in.CurrentPassword); err != nil {
			return err
		}
	}
	var after user
	err := s.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) error {
		before, err := getUser(ctx, tx, me.ID)
		if err == nil {
			err = changeUser(ctx, tx, by, before, c)
		}
		if err == nil {
			after, err = getUser(ctx, tx, me.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, after)
}

// verifyCaller answers GET /api/v1/auth/verify, which a proxy asks before it passes a request on: who
// the caller is, if he is signed in and has the permission and the role asked for.
func (s *server) verifyCaller(w http.ResponseWriter, r *http.Request) error {
	p, query := principalOf(r), r.URL.Query()
	if permission := optional(query, "permission"); permission != nil && !p.holds(*permission) {
		return p.lacks(*permission)
	}
	if role := optional(query, "role"); role != nil && !slices.Contains(p.User.Roles, *role) {
		return &problem{status: http.StatusForbidden, code: "role_missing", detail: "This needs another role."}
	}
	w.Header().Set("X-Cairn-User", p.User.Username)
	w.Header().Set("X-Cairn-Roles", strings.Join(p.User.Roles, ","))
	w.WriteHeader(http.StatusNoContent)
	return nil
}
