package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestConfigCheck: the settings in force, without secrets; what is wrong is said by name.
func TestConfigCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env       string
		says, err string
	}{
		{"", "CAIRN_STATE_DIR=var\n", ""},
		{"STATE_DIRECTORY=/s", "CAIRN_STATE_DIR=/s\n", ""},
		{"STATE_DIRECTORY=/s CAIRN_STATE_DIR=/t", "CAIRN_STATE_DIR=/t\n", ""},
		{"CAIRN_DATABASE_URL=postgres://u:secret@h/d", "CAIRN_DATABASE_URL=(set)\n", ""},
		{"CAIRN_LOG_FORMAT=json", "CAIRN_LOG_FORMAT=json\n", ""},
		{"CAIRN_LISTN=1", "CAIRN_LISTEN=127.0.0.1:8080\n", "there is no setting CAIRN_LISTN"},
		{"CAIRN_ACCESS_TTL=0s", "", "CAIRN_ACCESS_TTL: must be a duration"},
		{"CAIRN_REFRESH_GRACE=6m", "", "CAIRN_REFRESH_GRACE: must be a duration of at most 5m"},
		{"CAIRN_PASSWORD_MIN=7", "", "CAIRN_PASSWORD_MIN: must be a number from 8 to 64"},
		{"CAIRN_REGISTRATION=yes", "", "CAIRN_REGISTRATION: must be one of open approval closed"},
		{"CAIRN_TRUSTED_PROXIES=10.0.0.1", "", "CAIRN_TRUSTED_PROXIES: must be networks"},
		{"CAIRN_DATASETS_DIR=a::b", "", "CAIRN_DATASETS_DIR: must be directories"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"config", "check"}, strings.Fields(c.env), nil, &out, &out)
		if said := out.String(); !strings.Contains(said, c.says) || strings.Contains(said, "secret") || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %s", c.env, err, said)
		}
	}
}
