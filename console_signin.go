package main

import (
	"net/http"
	"strings"
)

// recognize sets the principal of a request for a page that is open to all, if its session cookie
// is valid. readPageFor (console.go) calls it before it reads the data of such a page. An error is
// kept in api.err, and answered later with an error page.
func (api *apiReader) recognize() {
	c := callerOf(api.r)
	accounts := api.console.accounts
	credential, err := accounts.readSessionCookie(api.r)
	if c.principal != nil || err != nil {
		return
	}

	p, err := accounts.getPrincipal(api.r.Context(), api.console.core.db, credential)
	if err == errInvalidToken {
		return
	}
	if err != nil {
		api.err = err
		return
	}

	c.credential = credential
	c.principal = p
}

// loginForm answers POST /login, as the API's login does. A passkey signs in alone. After a
// password, if the user has a second factor, the next page asks for it. The form of that page holds
// a passwordProof, and no password.
//
// refuse shows the form again, with the error. afterSignIn sends the browser to the page that it
// asked for.
func (c *console) loginForm(w http.ResponseWriter, r *http.Request) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	callerOf(r).inBrowser = true
	login := pageAt(c, "/login")

	// The form comes in three ways. In the first step it has a password, and a code is ignored: the
	// page of the second step asks for it. In the second step it has a proof of the first and a
	// code, and a password is ignored. A passkey that signs in alone comes as a code, without both.
	username := strings.TrimSpace(f.Get("username"))
	password := f.Get("password")
	otp := f.Get("otp")
	proof := optional(f, "proof")
	if proof != nil {
		password = ""
	} else if password != "" {
		otp = ""
	}

	found, err := c.accounts.checkCredentials(r, username, password, proof, otp)
	if err == errSignInAgain {
		delete(f, "proof")
		return c.refuse(w, r, f, login, err)
	}

	if err == nil {
		err = c.accounts.openSession(w, r, found, password)
	}
	err = c.accounts.auditLoginRefusal(r, found, err)
	if err == nil {
		return c.afterSignIn(w, r, f, found.Username)
	}

	// In the second step, errOTPRequired means an empty code. That is refused like a wrong one.
	isSecondStep := proof != nil
	if isSecondStep || err != errOTPRequired {
		return c.refuse(w, r, f, login, err)
	}

	// The password is right, and the code is missing: show a form that asks for it.
	c.accounts.rehash(r, found, password)
	end := c.core.now().Add(codeWait).Unix()
	signer := c.core.keys.Load().signer()
	f.Set("proof", signer.passwordProof(found, end))

	return c.show(login, func(p *page) { p.addForm(r, f) })(w, r)
}

// logoutForm answers POST /logout.
func (c *console) logoutForm(w http.ResponseWriter, r *http.Request) error {
	if err := c.accounts.endBrowserSession(r); err != nil {
		return err
	}

	c.accounts.setCookie(w, sessionCookieKind, "", -1)
	return goTo(w, "/login?done=out")
}
