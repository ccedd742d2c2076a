package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// formAnswer is the answer to a form that was accepted.
type formAnswer struct {
	Next   string         // the page after the form; empty: the form's own page, with Secret
	Secret map[string]any // what only this answer shows: see page.Once
}

// sentForm is a form that acts once: if it arrives again, from a double click or a reload of its
// answer, it gets the answer of the first time. All instances agree, because the answer is a row of
// form_answers for ten minutes. The answer may have a secret. So the row is encrypted, under a key
// that is stored nowhere: it comes from the form itself.
type sentForm struct {
	session string
	id      []byte      // of the row
	cipher  cipher.AEAD // encrypts the answer
}

// readOnce returns the form that a session has sent with a field "once", which holds random text.
// Without a session or that field, it returns nil. The id and the key are the halves of a SHA-512
// of the session, the path and the fields. Nobody who lacks the random text can compute them. A
// form of another session, to another path or with another field is another form.
func readOnce(r *http.Request, f url.Values) *sentForm {
	p := principalOf(r)
	if p == nil || p.kind != "session" || f.Get("once") == "" {
		return nil
	}

	sum := sha512.Sum512([]byte(p.credentialID + r.URL.Path + "?" + f.Encode()))
	block, _ := aes.NewCipher(sum[32:])            // fails only for a key of another length
	aead, _ := cipher.NewGCMWithRandomNonce(block) // fails only for another block size

	return &sentForm{
		session: p.credentialID,
		id:      sum[:32],
		cipher:  aead,
	}
}

// doOnce returns the answer of do. If the same form was accepted before, it returns the answer that
// the form had then. If the first is still at work, it waits for its end. A form that was refused
// may be sent again.
func (c *console) doOnce(r *http.Request, f url.Values, do func() (formAnswer, error)) (formAnswer, error) {
	sent := readOnce(r, f)
	if sent == nil {
		return do()
	}

	for {
		stored, isFirst, err := sent.begin(r.Context(), c.core.db)
		if err != nil {
			return formAnswer{}, err
		}
		if stored != nil {
			return sent.decrypt(stored)
		}
		if isFirst {
			break
		}
		if err := waitForFirst(r); err != nil {
			return formAnswer{}, err
		}
	}

	// The action is done, or was refused, whether or not that can be stored.
	answer, err := do()
	if noteErr := c.storeAnswer(r, sent, answer, err == nil); noteErr != nil {
		c.core.log.Warn("answer to a form not stored", "id", callerOf(r).requestID, "error", noteErr)
	}
	return answer, err
}

// waitForFirst waits a moment for the end of the first request with the same form. Meanwhile it
// gives back what this request holds, because the first one may need it. Then it checks the caller
// again.
func waitForFirst(r *http.Request) error {
	c := callerOf(r)
	c.slots.release()
	pause(r.Context(), 100*time.Millisecond)

	if err := c.slots.acquirePool(r.Context()); err != nil {
		return err
	}
	return c.authorize(r.Context())
}

// begin adds the row of a form. If there is one already, isFirst is false, and stored is its
// encrypted answer, or nil while the first is at work. A row without an answer expires with the
// time limit of its request. A session has at most a hundred rows: a new one replaces the oldest.
func (f *sentForm) begin(ctx context.Context, q querier) (stored []byte, isFirst bool, err error) {
	const claim = `
		WITH former AS (
			DELETE FROM form_answers
			WHERE session_id = $2
				AND id <> $1
				AND created_at <= (
					SELECT created_at
					FROM form_answers
					WHERE session_id = $2
					ORDER BY created_at DESC
					OFFSET 99
					LIMIT 1
				)
		)
		INSERT INTO form_answers AS a (id, session_id, expires_at)
		VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (id) DO UPDATE
		SET answer = NULL,
			expires_at = excluded.expires_at
		WHERE a.expires_at < now()`
	const read = `
		SELECT answer
		FROM form_answers
		WHERE id = $1
			AND expires_at > now()`

	deadline, _ := ctx.Deadline()
	lasts := time.Until(deadline) + time.Second // more than lastMoment allows
	n, err := execute(ctx, q, "begin a form", claim, f.id, f.session, lasts)
	if err != nil || n == 1 {
		return nil, true, err
	}

	type row struct{ Answer []byte }
	found, err := collectOne[row](ctx, q, nil, "read the answer to a form", read, f.id)
	return found.Answer, false, err
}

// storeAnswer stores the answer to a form. The row of a form that was refused expires at once.
func (c *console) storeAnswer(r *http.Request, f *sentForm, answer formAnswer, isAccepted bool) error {
	const query = `
		UPDATE form_answers
		SET answer = $2,
			expires_at = now() + $3::interval
		WHERE id = $1`

	ctx, cancel := lastMoment(r.Context())
	defer cancel()
	if err := callerOf(r).slots.acquirePool(ctx); err != nil {
		return err
	}

	lasts := 10 * time.Minute
	if !isAccepted {
		lasts = -time.Second
	}
	text, _ := encodeJSON(answer) // text and lists of text: there is no error
	_, err := execute(ctx, c.core.db, "store the answer to a form", query,
		f.id, f.cipher.Seal(nil, nil, text, nil), lasts)
	return err
}

// decrypt returns a stored answer.
func (f *sentForm) decrypt(stored []byte) (answer formAnswer, err error) {
	text, err := f.cipher.Open(nil, nil, stored, nil)
	if err != nil {
		return answer, fmt.Errorf("decrypt the answer to a form: %w", err)
	}
	err = json.Unmarshal(text, &answer)
	return answer, err
}

// keepForm returns err, the refusal of a request. If it is the 401 for a form whose session has
// ended, the error page is the login page, which keeps the form's fields in its own field "form",
// if there is room: see afterSignIn. Passwords, codes and the secret of an app are not kept.
func (c *console) keepForm(rt route, w *responseWriter, r *http.Request, err error) error {
	wrong := problemIn(err)
	hasEnded := wrong != nil && wrong.status == http.StatusUnauthorized
	if !hasEnded || isRead(r) || w.page == nil {
		return err
	}

	// The body may have been read already. Then it is in memory, and is read once more.
	caller := callerOf(r)
	caller.slots.owner = caller.network()
	caller.releaseBody()
	release, bodyErr := receiveBody(w, r, caller.slots, min(rt.maxBody, large))
	caller.releaseBody = release
	f, formErr := readForm(r)
	if bodyErr != nil || formErr != nil || caller.slots.acquirePool(r.Context()) != nil {
		return err
	}

	maps.DeleteFunc(f, func(name string, _ []string) bool {
		return slices.Contains([]string{"otp", "secret", "uri"}, name) || strings.HasSuffix(name, "password")
	})
	kept, _ := encodeJSON(f) // lists of text: there is no error
	if len(url.QueryEscape(string(kept))) > large-small {
		return err
	}

	login := r.Clone(r.Context())
	login.URL = &url.URL{Path: "/login"}
	return c.refuse(w, login, url.Values{"next": {r.URL.Path}, "form": {string(kept)}}, pageAt(c, "/login"), err)
}

// afterSignIn answers a form of the login page whose sender is signed in now: the browser reads the
// page in the field "next". If the login page has kept a form, a page shows it with a button that
// sends it. It is not sent by itself, because the sender of the form may have been somebody else.
func (c *console) afterSignIn(w http.ResponseWriter, r *http.Request, f url.Values, username string) error {
	next := safeNext(f.Get("next"), c.core.cfg.baseURL)
	kept := url.Values{}
	json.Unmarshal([]byte(f.Get("form")), &kept) // with an error, the form lacks fields
	if len(kept) == 0 {
		return goTo(w, next)
	}

	return c.show(pageRow{
		template: "kept-form",
		title:    "Send your form",
		read: func(*apiReader) any {
			return map[string]any{"Username": username, "Path": next, "Fields": kept}
		},
	})(w, r)
}
