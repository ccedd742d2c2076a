package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A browser's session ends after browserIdle without use; a look at a page that is open to all is
// no use. At the latest it ends browserMax or CAIRN_SESSION_MAX after the login, whichever is less.
const (
	browserIdle = 24 * time.Hour
	browserMax  = 30 * 24 * time.Hour
)

// signSessionCookie returns the session cookie of a browser: the ids of the session and of its
// user, the end of the session in Unix seconds, and a MAC over them. It cannot be exchanged for an
// access token or a refresh token.
func (k key) signSessionCookie(sessionID, userID string, expires time.Time) string {
	signed := fmt.Sprintf("%s.%s.%d", sessionID, userID, expires.Unix())
	return signed + "." + encodedMAC(k.browser, signed)
}

// verifySessionCookie returns the credential in a session cookie that one of the keys has signed
// and that is valid at the time now, else errToken.
func (ring *keyring) verifySessionCookie(cookie string, now time.Time) (credential, error) {
	parts := strings.SplitN(cookie, ".", 4)
	if len(parts) != 4 || len(cookie) > maxTokenLength {
		return credential{}, errToken
	}

	expires, err := strconv.ParseInt(parts[2], 10, 64)
	isSigned := ring.isSigned(cookie, func(k key) string {
		return k.signSessionCookie(parts[0], parts[1], time.Unix(expires, 0))
	})
	isExpired := now.Unix() >= expires
	if err != nil || !isSigned || isExpired {
		return credential{}, errToken
	}

	claims := accessClaims{
		SessionID: parts[0],
		Subject:   parts[1],
		ExpiresAt: expires,
	}
	return credential{accessClaims: claims}, nil
}

// readSessionCookie returns the credential in the request's session cookie, or the 401.
func (a *accounts) readSessionCookie(r *http.Request) (credential, error) {
	cookie, err := r.Cookie(a.cookieName(sessionCookieKind))
	if err != nil {
		return credential{}, errNotSignedIn
	}

	c, err := a.core.keys.Load().verifySessionCookie(cookie.Value, a.core.now())
	if err != nil {
		return credential{}, errInvalidToken
	}
	return c, nil
}

// lifetimes returns how long the session of this login may be idle, and how long it lasts in all.
func (a *accounts) lifetimes(r *http.Request) (idle, longest time.Duration) {
	if callerOf(r).inBrowser {
		longest = min(a.core.cfg.sessionMax, browserMax)
		return min(longest, browserIdle), longest
	}
	return a.core.cfg.refreshTTL, a.core.cfg.sessionMax
}

// writeSessionCookie sets the session cookie after a login on a page.
func (a *accounts) writeSessionCookie(w http.ResponseWriter, r *http.Request, u user, sess session) {
	_, lasts := a.lifetimes(r)
	signer := a.core.keys.Load().keys[0]
	expires := a.core.now().Add(lasts)
	cookie := signer.signSessionCookie(uuidText(sess.SessionID), u.ID, expires)
	a.setCookie(w, sessionCookieKind, cookie, int(lasts/time.Second))
}

// endBrowserSession ends the session of the request's session cookie, if it has one.
func (a *accounts) endBrowserSession(r *http.Request) error {
	c, err := a.readSessionCookie(r)
	if err != nil {
		return nil // nothing to end
	}

	_, err = endSessions(r.Context(), a.core.db, actorOf(r), "session.logout", `s.id = $7`, c.SessionID)
	return err
}

// noteSessionUse stores that a browser uses its session now, at most once in five minutes, and
// renews the session's idle time.
func noteSessionUse(ctx context.Context, q querier, id string) error {
	const query = `
		UPDATE sessions
		SET rotated_at = now(),
			idle_expires_at = least(now() + $2::interval, expires_at)
		WHERE id = $1
			AND rotated_at < now() - interval '5 minutes'`
	_, err := execute(ctx, q, "note use of a session", query, id, browserIdle)
	return err
}

// safeNext returns the page that a browser opens after the login: next, without baseURL before it.
// If next is not a path of this service, or could lead to another host, it returns "/".
func safeNext(next, baseURL string) string {
	if rest, ok := strings.CutPrefix(next, baseURL+"/"); ok && baseURL != "" {
		next = "/" + rest
	}

	u, err := url.Parse(next)
	if err != nil || u.Host != "" || u.Scheme != "" {
		return "/"
	}

	// Browsers read \ as / and skip control characters.
	isForbidden := func(c rune) bool { return c == '\\' || isUnsafe(c) }
	isPath := strings.HasPrefix(next, "/") && !strings.HasPrefix(next, "//")
	if !isPath || strings.ContainsFunc(next, isForbidden) {
		return "/"
	}
	return next
}

// loginPathTo returns the path of the login page, which goes on to next.
func loginPathTo(next string) string { return "/login?next=" + url.QueryEscape(next) }

// withLoginPage returns err, a refusal of verifyPath. If it is a 401 and a browser asks for a page,
// the result also has a Location: the login page, to which the proxy sends the browser. The proxy
// names the page that was asked for in X-Original-Uri or X-Forwarded-Uri.
func withLoginPage(r *http.Request, err error, baseURL string) error {
	refused, ok := errors.AsType[*problem](err)
	if !ok || refused.status != http.StatusUnauthorized {
		return err
	}

	uri := r.Header.Get("X-Original-Uri")
	if uri == "" {
		uri = r.Header.Get("X-Forwarded-Uri")
	}
	isForPage := strings.Contains(r.Header.Get("Accept"), "text/html")
	if uri == "" || !isForPage {
		return err
	}

	// A copy, because many requests share the problem.
	p := *refused
	p.location = loginPathTo(safeNext(uri, baseURL))
	return &p
}

// passwordPath returns the path of the page that sets a password with a token. The token follows #,
// so that no server gets it with the address, and no log has it. The page's script moves it into
// the form; without scripts, the user types or pastes it.
func passwordPath(token string) string { return "/set-password#" + token }
