package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// everyBench has results of all variants, each faster than the one before it.
func everyBench() []benchResults {
	var list []benchResults
	for _, b := range benches() {
		ran := benchResults{bench: b}
		for i, v := range b.Variants {
			ran.results = append(ran.results, Result{Variant: v, Samples: []Sample{{Ops: 1000 * (i + 1), Elapsed: time.Second}}})
		}
		list = append(list, ran)
	}
	return list
}

// texts are what an SVG says, in the order in which it is written.
func texts(t *testing.T, svg []byte) (list []string) {
	t.Helper()
	var image struct {
		XMLName xml.Name
		Inner   []byte `xml:",innerxml"`
	}
	require.NoError(t, xml.Unmarshal(svg, &image))
	require.Equal(t, xml.Name{Space: "http://www.w3.org/2000/svg", Local: "svg"}, image.XMLName)
	for part := range strings.SplitSeq(string(image.Inner), "<text ") {
		_, part, _ = strings.Cut(part, ">")
		if text, _, ok := strings.Cut(part, "</text>"); ok {
			list = append(list, text)
		}
	}
	return list
}

func TestPictureHasABarForEachVariantAtItsMostInFlight(t *testing.T) {
	ran := everyBench()
	var svg bytes.Buffer
	require.NoError(t, picture(&svg, ran))
	said := texts(t, svg.Bytes())
	require.Contains(t, said, "Inbox: messages handled per second, 128 in flight")
	require.Contains(t, said, "Relay: messages sent per second, 4096 in flight")
	bars := 0
	for _, p := range panels {
		i := slices.IndexFunc(ran, func(b benchResults) bool { return b.bench.Name == p.bench })
		require.GreaterOrEqual(t, i, 0, "no benchmark is called %s", p.bench)
		for _, r := range atMostInFlight(ran[i].results) {
			label := func(text string) bool {
				return text == r.Variant.Name || text == fmt.Sprintf("%s (%d in flight)", r.Variant.Name, r.Variant.InFlight)
			}
			if slices.Contains(p.without, r.Variant.Name) {
				require.False(t, slices.ContainsFunc(said, label), r.Variant.Name)
				continue
			}
			require.True(t, slices.ContainsFunc(said, label), "no bar is called %s", r.Variant.Name)
			bars++
		}
	}
	require.Len(t, said, len(panels)+2*bars, "a title for each panel, a name and a figure for each bar")
	require.Equal(t, bars, strings.Count(svg.String(), "<path "), "there is nothing but bars: the page shows behind them")
	require.NotContains(t, svg.String(), "<rect")

	var again bytes.Buffer
	require.NoError(t, picture(&again, everyBench()))
	require.Equal(t, svg.String(), again.String())
}

func TestPictureSortsBarsAndMarksOncemill(t *testing.T) {
	at := func(name string, inFlight int, rates ...int) Result {
		r := result(name, nil, rates...)
		r.Variant.InFlight = inFlight
		return r
	}
	var svg bytes.Buffer
	require.NoError(t, picture(&svg, []benchResults{{Bench{Name: "relay"}, []Result{
		at("forwarder", 1, 900), at("oncemill-1", 8, 99_999), at("raw-publish", 64, 81_000, 83_000, 82_000), at("oncemill-1", 64, 41_000),
	}}}))
	require.ElementsMatch(t, []string{
		"Relay: messages sent per second, 64 in flight",
		"raw-publish", "82,000", "oncemill-1", "41,000", "forwarder (1 in flight)", "900",
	}, texts(t, svg.Bytes()))
	require.Equal(t, 1, strings.Count(svg.String(), "fill:#2978D8"))
	require.Equal(t, 2, strings.Count(svg.String(), "fill:#909090"))
	require.Less(t, strings.Index(svg.String(), "forwarder"), strings.Index(svg.String(), "oncemill-1"), "from the bottom up")
	require.Less(t, strings.Index(svg.String(), "oncemill-1"), strings.Index(svg.String(), "raw-publish"))
}

func TestPictureOfNothing(t *testing.T) {
	const nothing = "picture: there are no results to show, neither of inbox nor of relay"
	var svg bytes.Buffer
	require.EqualError(t, picture(&svg, nil), nothing)
	require.EqualError(t, picture(&svg, []benchResults{{bench: inboxBench()}, {latencyBench(), []Result{result("x", nil, 1)}}}), nothing)
	require.Empty(t, svg.Bytes())

	file := filepath.Join(t.TempDir(), "bench.svg")
	require.EqualError(t, pictureFile(file, nil), nothing)
	require.NoFileExists(t, file)

	require.ErrorContains(t, picture(&svg, []benchResults{{inboxBench(), []Result{{Variant: Variant{Name: "idle"}}}}}), "picture of inbox: idle: ")
	require.Empty(t, svg.Bytes())
}

func TestPictureFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.svg")
	require.NoError(t, pictureFile(file, everyBench()))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotEmpty(t, texts(t, svg))
	require.ErrorContains(t, pictureFile(filepath.Join(file, "x"), everyBench()), "write the picture: ")
}

// luminance and contrast are those of WCAG 2.
func luminance(c color.RGBA) float64 {
	linear := func(part uint8) float64 {
		v := float64(part) / 255
		if v <= 0.04045 {
			return v / 12.92
		}
		return math.Pow((v+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(c.R) + 0.7152*linear(c.G) + 0.0722*linear(c.B)
}

func contrast(a, b color.RGBA) float64 {
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestPictureIsReadableOnLightAndDark(t *testing.T) {
	for _, page := range []color.RGBA{{0xff, 0xff, 0xff, 0xff}, {0x0d, 0x11, 0x17, 0xff}} {
		require.GreaterOrEqual(t, contrast(textColour, page), 4.0)
		require.GreaterOrEqual(t, contrast(ownColour, page), 4.0)
		require.GreaterOrEqual(t, contrast(othersColour, page), 3.0)
	}
}
