package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// benchResults are a benchmark that ran and what came of it.
type benchResults struct {
	bench   Bench
	results []Result
}

// panel is a benchmark in a picture, without some of its variants.
type panel struct {
	bench, title string
	without      []string
}

// panels are what a picture shows, from top to bottom.
var panels = []panel{
	{"inbox", "Inbox: messages handled per second", []string{"pgx-minimal"}},
	{"relay", "Relay: messages sent per second", []string{"oncemill-1-keyed", "oncemill-1-hotkey", "oncemill-1-delete", "oncemill-1-oldsnapshot"}},
}

// The colours stand out from a white and from a dark page alike.
var (
	textColour   = color.RGBA{R: 0x78, G: 0x78, B: 0x78, A: 0xff}
	ownColour    = color.RGBA{R: 0x29, G: 0x78, B: 0xd8, A: 0xff}
	othersColour = color.RGBA{R: 0x90, G: 0x90, B: 0x90, A: 0xff}
)

// Sizes in the picture.
const (
	pictureWidth           = 7.5 * vg.Inch
	rowHeight    vg.Length = 18
	barHeight    vg.Length = 12
	titleHeight  vg.Length = 24
	panelGap     vg.Length = 14
	valueGap     vg.Length = 4
)

// pictureFile writes a picture to a file, and none at all if it fails.
func pictureFile(name string, benches []benchResults) error {
	var svg bytes.Buffer
	if err := picture(&svg, benches); err != nil {
		return err
	}
	if err := os.WriteFile(name, svg.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// picture draws bars of the panels' benchmarks, those that ran, as SVG: for
// each variant the median rate at the most in flight, the fastest at the top.
func picture(w io.Writer, benches []benchResults) error {
	var charts []*chart
	height := -panelGap
	for _, p := range panels {
		i := slices.IndexFunc(benches, func(b benchResults) bool { return b.bench.Name == p.bench })
		if i < 0 {
			continue
		}
		results := slices.DeleteFunc(atMostInFlight(benches[i].results), func(r Result) bool {
			return slices.Contains(p.without, r.Variant.Name)
		})
		if len(results) == 0 {
			continue
		}
		c, err := newChart(p.title, results)
		if err != nil {
			return fmt.Errorf("picture of %s: %w", p.bench, err)
		}
		charts = append(charts, c)
		height += panelGap + c.height
	}
	if len(charts) == 0 {
		return errors.New("picture: there are no results to show, neither of inbox nor of relay")
	}

	canvas := vgsvg.New(pictureWidth, height)
	page := draw.New(canvas)
	left := vg.Length(0)
	for _, c := range charts {
		left = max(left, c.left(page))
	}
	for _, c := range charts {
		c.draw(page, left)
		page = draw.Crop(page, 0, 0, 0, -c.height-panelGap)
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return fmt.Errorf("draw the picture: %w", err)
	}
	// Where the font is not installed, one of the same widths.
	_, err := io.WriteString(w, strings.ReplaceAll(svg.String(), "font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	return err
}

// atMostInFlight returns each variant once, as it ran with the most in flight,
// the slowest first.
func atMostInFlight(results []Result) []Result {
	var most []Result
	for _, r := range results {
		i := slices.IndexFunc(most, func(m Result) bool { return m.Variant.Name == r.Variant.Name })
		switch {
		case i < 0:
			most = append(most, r)
		case r.Variant.InFlight > most[i].Variant.InFlight:
			most[i] = r
		}
	}
	slices.SortStableFunc(most, func(a, b Result) int { return cmp.Compare(median(a.rates()), median(b.rates())) })
	return most
}

// chart is a panel.
type chart struct {
	title  string
	plot   *plot.Plot
	height vg.Length
}

// newChart has a bar for each result, from the bottom up.
func newChart(title string, results []Result) (*chart, error) {
	inFlight := 0
	for _, r := range results {
		inFlight = max(inFlight, r.Variant.InFlight)
	}
	p := plot.New()
	p.BackgroundColor = nil
	names := make([]string, len(results))
	values := plotter.XYLabels{XYs: make(plotter.XYs, len(results)), Labels: make([]string, len(results))}
	english := message.NewPrinter(language.English)
	for i, r := range results {
		names[i] = r.Variant.Name
		if r.Variant.InFlight != inFlight {
			names[i] += fmt.Sprintf(" (%d in flight)", r.Variant.InFlight)
		}
		rate := median(r.rates())
		bar, err := plotter.NewBarChart(plotter.Values{rate}, barHeight)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Variant.Name, err)
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, float64(i), 0, othersColour
		if strings.HasPrefix(r.Variant.Name, "oncemill") {
			bar.Color = ownColour
		}
		p.Add(bar)
		values.XYs[i] = plotter.XY{X: rate, Y: float64(i)}
		values.Labels[i] = english.Sprintf("%.0f", rate)
	}
	labels, err := plotter.NewLabels(values)
	if err != nil {
		return nil, err
	}
	style := textStyle(draw.XLeft, draw.YCenter)
	labels.TextStyle = slices.Repeat([]text.Style{style}, len(results))
	// Up to the line that an axis writes its names on.
	labels.Offset = vg.Point{X: valueGap, Y: style.FontExtents().Descent}
	p.Add(labels)
	p.HideX()
	p.NominalY(names...)
	p.Y.Tick.Label = textStyle(draw.XRight, draw.YCenter)
	p.X.Min, p.Y.Min, p.Y.Max = 0, -0.5, float64(len(results))-0.5
	p.X.Padding, p.Y.Padding = 0, valueGap
	return &chart{
		title:  fmt.Sprintf("%s, %d in flight", title, inFlight),
		plot:   p,
		height: titleHeight + vg.Length(len(results))*rowHeight,
	}, nil
}

func textStyle(x text.XAlignment, y text.YAlignment) text.Style {
	return text.Style{
		Color:   textColour,
		Font:    font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, 10),
		XAlign:  x,
		YAlign:  y,
		Handler: plot.DefaultTextHandler,
	}
}

// left is how much room the names take.
func (c *chart) left(page draw.Canvas) vg.Length {
	return c.plot.DataCanvas(page).Min.X - page.Min.X
}

// draw draws the chart at the top of the page, its bars starting at left.
func (c *chart) draw(page draw.Canvas, left vg.Length) {
	title := textStyle(draw.XLeft, draw.YTop)
	title.Font.Size = 12
	page.FillText(title, vg.Point{X: page.Min.X + left, Y: page.Max.Y}, c.title)
	below := page.Max.Y - c.height - page.Min.Y
	c.plot.Draw(draw.Crop(page, left-c.left(page), 0, below, -titleHeight))
}
