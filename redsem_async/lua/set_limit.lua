-- set_limit: a limit that overrides every client's own, until it is taken away.
--
-- KEYS     as in the head
-- ARGV     most  the limit, '' for none
-- RETURNS  {tag, next_ms, waiting, mine}

local most = ARGV[5]

survey()
if most == '' then
  call('DEL', limit)
else
  call('SET', limit, most)
end
cap = tonumber(most)
purge()
freed = cap and math.max(0, cap - used) or math.huge
serve()
return standing()
